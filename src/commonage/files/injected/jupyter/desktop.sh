# The programs of a desktop, until its window manager ends. Started by the VNC server, for jupyter-remote-desktop-proxy.
# OpenGL runs on the GPU of the share if VirtualGL is installed, otherwise in software.
cd "$HOME" || exit 1
unset SESSION_MANAGER DBUS_SESSION_BUS_ADDRESS

for one in startxfce4 startlxqt mate-session icewm-session openbox-session fluxbox jwm twm xterm; do
  if command -v "$one" >/dev/null 2>&1; then desktop=$one; break; fi
done
if [ -z "$desktop" ]; then
  echo "No window manager is installed in this environment. Add one, for example xfce4." >&2
  exit 1
fi
if command -v dbus-launch >/dev/null 2>&1; then set -- dbus-launch --exit-with-session; else set --; fi

# The GPU as VirtualGL names it: the device node of the first GPU of the share.
if command -v vglrun >/dev/null 2>&1; then
  gpu=${CUDA_VISIBLE_DEVICES%%,*}
  bus=$(nvidia-smi ${gpu:+--id="$gpu"} --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null | head -n 1)
  # nvidia-smi writes the domain with eight digits, the kernel with four.
  card=/dev/dri/by-path/pci-$(printf %s "$bus" | tr 'A-F' 'a-f' | cut -c 5-)-card
  if [ -n "$bus" ]; then
    [ -e "$card" ] && VGL_DISPLAY=$(readlink -f "$card") || VGL_DISPLAY=egl
    export VGL_DISPLAY
    set -- vglrun -d "$VGL_DISPLAY" +wm "$@"
  fi
fi
exec "$@" "$desktop"
