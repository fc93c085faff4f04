-- What a description may be that the control plane sends with a call: exactly what the engines write, key by key. What is not
-- listed here does not get through, and what isolates must be there: what a daemon would take in its place is another matter.
-- A text that could be read in two ways (a key twice, or written with an escape) is refused, so that the daemon reads what
-- was read here.

local function complain(why) error({why = why}, 0) end

-- --- JSON -------------------------------------------------------------------------------------------------------------
-- A value is {kind = "object", of = {key = value}}, {kind = "list", of = {value, …}}, {kind = "text", raw = …, plain = no
-- escape in it}, {kind = "number", raw = …} or {kind = "word", raw = "true", "false" or "null"}.

local DEEPEST = 16
local WORDS = {["true"] = true, ["false"] = true, ["null"] = true}

function read_json(text, deepest)
  local at, read = 1, nil

  local function skip() at = text:find("[^ \t\r\n]", at) or #text + 1 end

  local function read_text()
    local from, plain = at + 1, true
    at = from
    while true do
      at = text:find('[\0-\31"\\]', at) or complain("a text has no end")
      local found = text:sub(at, at)
      if found == '"' then break end
      plain = false
      at = text:match('^\\["\\/bfnrt]()', at) or text:match("^\\u%x%x%x%x()", at) or complain("a text is not as in JSON")
    end
    at = at + 1
    return {kind = "text", raw = text:sub(from, at - 2), plain = plain}
  end

  local function read_members(close, read_one)
    at = at + 1
    skip()
    if text:sub(at, at) == close then at = at + 1; return end
    while true do
      read_one()
      skip()
      local found = text:sub(at, at)
      at = at + 1
      if found == close then return end
      if found ~= "," then complain("it is not JSON") end
      skip()
    end
  end

  function read(depth)
    if depth > deepest then complain("it is too deep") end
    skip()
    local found = text:sub(at, at)
    if found == '"' then return read_text() end
    local of = {}
    if found == "[" then
      read_members("]", function() of[#of + 1] = read(depth + 1) end)
      return {kind = "list", of = of}
    end
    if found == "{" then
      read_members("}", function()
        if text:sub(at, at) ~= '"' then complain("it is not JSON") end
        local key = read_text()
        if of[key.raw] then complain("a key is there twice: " .. key.raw) end
        skip()
        if text:sub(at, at) ~= ":" then complain("it is not JSON") end
        at = at + 1
        of[key.raw] = read(depth + 1)
      end)
      return {kind = "object", of = of}
    end
    local raw = text:match("^[%w.+-]+", at) or complain("it is not JSON")
    at = at + #raw
    if WORDS[raw] then return {kind = "word", raw = raw} end
    if raw:find("^-?%d[%d.eE+-]*$") then return {kind = "number", raw = raw} end
    complain("it is not JSON")
  end

  local value = read(1)
  skip()
  if at <= #text then complain("there is something behind it") end
  return value
end

-- --- shapes: functions of a value and where it stands, which complain -------------------------------------------------

local function wrong(where) complain(where .. " is not as the engines write it") end

-- One of these texts or patterns of texts, or any.
local function text(...)
  local patterns = {...}
  return function(value, where)
    if value.kind ~= "text" then wrong(where) end
    if #patterns == 0 then return end
    for _, pattern in ipairs(patterns) do
      if value.plain and value.raw:find("^" .. pattern .. "$") then return end
    end
    wrong(where)
  end
end

local function word(wanted)
  return function(value, where)
    if value.kind ~= "word" or value.raw ~= wanted then wrong(where) end
  end
end

local function flag(value, where)
  if value.kind ~= "word" or value.raw == "null" then wrong(where) end
end

local function count(least, most)
  return function(value, where)
    local found = value.kind == "number" and value.raw:find("^%d+$") and #value.raw < 19 and tonumber(value.raw)
    if not found or found < least or found > (most or found) then wrong(where) end
  end
end

-- With `least` and `most` so many of them.
local function list(shape, least, most)
  return function(value, where)
    if value.kind ~= "list" or #value.of < (least or 0) or #value.of > (most or #value.of) then wrong(where) end
    for number, one in ipairs(value.of) do shape(one, where .. "." .. number - 1) end
  end
end

local function map(shape, pattern)
  return function(value, where)
    if value.kind ~= "object" then wrong(where) end
    for key, one in pairs(value.of) do
      if pattern and not key:find("^" .. pattern .. "$") then wrong(where .. "." .. key) end
      shape(one, where .. "." .. key)
    end
  end
end

-- All keys of `needed`, and those of `more` that are there.
local function object(needed, more)
  return function(value, where)
    if value.kind ~= "object" then wrong(where) end
    for key, one in pairs(value.of) do
      local shape = needed[key] or (more or {})[key]
      if not shape then complain(where .. "." .. key .. " is nothing that the engines write") end
      shape(one, where .. "." .. key)
    end
    for key in pairs(needed) do
      if not value.of[key] then complain(where .. "." .. key .. " is missing") end
    end
  end
end

-- As the text at `key` says.
local function either(key, shapes)
  return function(value, where)
    local said = value.kind == "object" and value.of[key]
    local shape = said and said.kind == "text" and said.plain and shapes[said.raw]
    if not shape then wrong(where .. "." .. key) end
    shape(value, where)
  end
end

-- --- folders of the node -------------------------------------------------------------------------------------------
-- Each is said to its last part, `*` being any one: what is below may be a link that somebody made who works there.

local OWN = {"workspaces/*", "volumes/*", "docker/runs/*/control", "docker/runs/*/log", "swarm/attempts/*/control", "swarm/attempts/*/log",
  "docker/injected/python", "docker/injected/jupyter", "gpus/preload/libvgpu.so", "gpus/preload/ld.so.preload"}
local PART = "[%w._~@+-]+"
local folders = {}
-- The node agent of a Swarm mounts the folders of an attempt here. An interposer is in a folder of its own.
local ON_SWARM = os.getenv("COMMONAGE_ENGINE") == "swarm"
local MOUNTED = {}
for number, name in ipairs({"workspace", "control", "log", "volume%-%d+"}) do
  MOUNTED[number] = "^/run/commonage/attempts/%w+%-%d+/" .. name .. "$"
end
for _, name in ipairs({"libvgpu%.so", "ld%.so%.preload"}) do
  MOUNTED[#MOUNTED + 1] = "^/var/lib/commonage%-agent/gpus/preload/" .. name .. "$"
end

local function parts_of(folder)
  local parts = {}
  for part in folder:gmatch("[^/]+") do parts[#parts + 1] = part end
  return parts
end

-- Whether one may be the other or be in it.
local function meet(parts, others)
  for number = 1, math.min(#parts, #others) do
    if parts[number] ~= others[number] and parts[number] ~= "*" then return false end
  end
  return true
end

local given = {}
for folder in (os.getenv("COMMONAGE_MOUNTS") or ""):gmatch("[^:]+") do given[folder] = parts_of(folder) end
for _, name in ipairs({"COMMONAGE_DATA_DIR", "COMMONAGE_SHARED_DIR"}) do
  local root = os.getenv(name) or ""
  local place = parts_of(root)
  if root ~= "" then
    for _, below in ipairs(OWN) do folders[#folders + 1] = parts_of(root .. "/" .. below) end
    for folder, parts in pairs(given) do
      if meet(parts, place) and parts[#place + 1] ~= "volumes" then
        error("COMMONAGE_MOUNTS: " .. folder .. " has a part in " .. root .. " and so in its secrets; name folders elsewhere", 0)
      end
    end
  end
end
for _, parts in pairs(given) do folders[#folders + 1] = parts end

local function is_one(parts, wanted)
  if #parts ~= #wanted then return false end
  for number, part in ipairs(parts) do
    if wanted[number] ~= part and wanted[number] ~= "*" then return false end
  end
  return true
end

local function folder(value, where)
  local parts, plain = {}, ""
  if value.kind ~= "text" or not value.plain then wrong(where) end
  for part in value.raw:gmatch("[^/]+") do
    if part == "." or part == ".." or not part:find("^" .. PART .. "$") then wrong(where) end
    parts[#parts + 1] = part
    plain = plain .. "/" .. part
  end
  if plain ~= value.raw then wrong(where) end
  for _, pattern in ipairs(ON_SWARM and MOUNTED or {}) do
    if plain:find(pattern) then return end
  end
  for _, wanted in ipairs(folders) do
    if is_one(parts, wanted) then return end
  end
  complain(where .. " is a folder that is not for containers; COMMONAGE_MOUNTS names those that are")
end

-- --- what the engines write -------------------------------------------------------------------------------------------

local NETWORK = "commonage%-[%w._~-]+"
local VOLUME = "commonage%-%x%x%x%x%x%x%x%x%-[%w._-]+"
local STORED = "commonage%-[%w-]+"
local FILE = "[%w_][%w._-]*"
local PLACE = function(value, where)
  if value.kind ~= "text" or value.raw:sub(1, 1) ~= "/" then wrong(where) end
end
local texts, any_labels, one = list(text()), map(text()), count(1)
-- Labels of an object of an installation. Without this one the object could not be inspected or removed through the filter.
local labels = function(value, where)
  any_labels(value, where)
  if not value.of["commonage.installation"] then complain(where .. ".commonage.installation is missing") end
  text("%x+")(value.of["commonage.installation"], where .. ".commonage.installation")
end
local no_core = list(object({Name = text("core"), Soft = count(0, 0), Hard = count(0, 0)}), 1, 1)
local names = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"}
local cap_names = {}
for number, name in ipairs(names) do cap_names[number] = "CAP_" .. name end
local log_options = object({["max-size"] = text("1m"), ["max-file"] = text("1")})

local function options(value, where)
  if not (value.kind == "object" and next(value.of)) then return map(wrong)(value, where) end
  if value.of.size then return object({size = text("%d+")})(value, where) end
  local memory = text("size=%d+m,mode=1777,nosuid,nodev")
  object({type = text("tmpfs"), device = text("tmpfs"), o = memory})(value, where)
end

local mount = either("Type", {
  bind = object({
    Type = text("bind"), Source = folder, Target = PLACE, ReadOnly = flag,
    BindOptions = object({Propagation = text("rprivate")}, {NonRecursive = flag}),
  }),
  volume = object({
    Type = text("volume"), Target = PLACE, ReadOnly = flag,
    VolumeOptions = object({Labels = labels, DriverConfig = object({Name = text("local"), Options = options})}),
  }, {Source = text(VOLUME)}),
  tmpfs = object({Type = text("tmpfs"), Target = text("/dev/shm"), TmpfsOptions = object({SizeBytes = one, Mode = count(1023, 1023)})}),
})

local device = either("Driver", {
  cdi = object({Driver = text("cdi"), DeviceIDs = list(text("nvidia%.com/gpu=GPU%-[%w-]+", "nvidia%.com/gpu=MIG%-[%w-]+"), 1)}),
  nvidia = object({
    Driver = text("nvidia"), DeviceIDs = list(text("GPU%-[%w-]+", "MIG%-[%w-]+"), 1),
    Capabilities = list(list(text("gpu", "compute", "utility"), 1), 1, 1),
  }),
})

local host = object({
  NetworkMode = text(NETWORK), Privileged = word("false"), CapDrop = list(text("ALL"), 1, 1), CapAdd = list(text(table.unpack(names))),
  SecurityOpt = list(text("no%-new%-privileges"), 1, 1), IpcMode = text("private"), CgroupnsMode = text("private"),
  RestartPolicy = object({Name = text("no")}), Init = word("true"), Memory = one, MemorySwap = one, PidsLimit = one, ShmSize = count(0),
  Ulimits = no_core, Mounts = list(mount), LogConfig = object({Type = text("json%-file"), Config = log_options}),
}, {NanoCpus = one, CpuShares = one, DeviceRequests = list(device)})

local container = object({
  Image = text(), Entrypoint = texts, Cmd = texts, User = text("%d+:%d+"), HostConfig = host, Labels = labels,
  NetworkingConfig = object({EndpointsConfig = map(object({}), NETWORK)}),
}, {Env = texts, WorkingDir = text(), Hostname = text("[%w-]+"), StopSignal = text("SIGTERM")})

local held = {MemoryBytes = one}
local vram = object({DiscreteResourceSpec = object({Kind = text("VRAM"), Value = one})})
local port = count(1024, 65535)
-- A config or secret as a read-only file. filter.lua asks the daemon who owns it.
local READ_ONLY = {[256] = true, [288] = true, [292] = true, [320] = true, [360] = true, [365] = true}
local function file_mode(value, where)
  if value.kind ~= "number" or not (value.raw:find("^%d%d%d$") and READ_ONLY[tonumber(value.raw)]) then wrong(where) end
end
local function files(kind, ...)
  return list(object({
    File = object({Name = text(...), UID = text("%d+"), GID = text("%d+"), Mode = file_mode}),
    [kind .. "ID"] = text("%w+"), [kind .. "Name"] = text(STORED),
  }))
end
local task = object({
  ContainerSpec = object({
    Image = text(), Command = texts, Args = texts, User = text("%d+:%d+"), Labels = labels, CapabilityDrop = list(text("ALL"), 1, 1),
    CapabilityAdd = list(text(table.unpack(cap_names))), Ulimits = no_core, Init = word("true"), Mounts = list(mount),
  }, {Env = texts, Dir = text(), Hostname = text("[%w-]+"), StopSignal = text("SIGTERM"), StopGracePeriod = count(0),
    Configs = files("Config", "/run/commonage/" .. FILE, "/run/commonage/python/" .. FILE, "/run/commonage/jupyter/" .. FILE,
      "/run/commonage/jupyter/labconfig/" .. FILE, "/run/commonage/jupyter/templates/" .. FILE,
      "/run/commonage/jupyter/labextensions/@commonage/session/" .. FILE,
      "/run/commonage/jupyter/labextensions/@commonage/session/static/" .. FILE,
      "/run/commonage/jupyter/labextensions/commonage/" .. FILE, "/run/commonage/jupyter/labextensions/commonage/static/" .. FILE),
    Secrets = files("Secret", FILE, "/run/secrets/" .. FILE, "/run/commonage/" .. FILE),
  }),
  Resources = object({
    Limits = object({MemoryBytes = one, Pids = one}, {NanoCPUs = one}),
    Reservations = object(held, {NanoCPUs = one, GenericResources = list(vram)}),
  }),
  RestartPolicy = object({Condition = text("none"), MaxAttempts = count(0, 0)}),
  Placement = object({Constraints = list(text("node%.id==%w+"), 1, 1)}),
  Networks = list(object({Target = text(NETWORK)}), 1, 1),
  LogDriver = object({Name = text("json%-file"), Options = log_options}),
})

local service = object({
  Name = text("cm%-[%w-]+", "jy%-[%w-]+"), Labels = labels, TaskTemplate = task,
  Mode = object({Replicated = object({Replicas = count(1, 1)})}),
  EndpointSpec = object({Mode = text("dnsrr"), Ports = list(object({
    Protocol = text("tcp"), TargetPort = port, PublishedPort = port, PublishMode = text("host"),
  }))}),
})

local network_parts = {
  Name = text(NETWORK), CheckDuplicate = word("true"), Driver = text("bridge", "overlay"), Labels = labels,
  IPAM = object({Driver = text("default"), Config = list(object({Subnet = text("%d+%.%d+%.%d+%.%d+/%d+")}), 1, 1)}),
}
local network = object(network_parts, {Options = object({}, {encrypted = text("")})})

local volume = object({Name = text("commonage%-probe%-%x+"), DriverOpts = object({size = text("%d+")})})

-- What is said again when the token for workers is changed; what it is for the rest, is the Swarm's as it is made.
local any_count = count(0)
local swarm = object({
  Name = text(), Labels = any_labels, Orchestration = map(any_count), Raft = map(any_count), Dispatcher = map(any_count),
  CAConfig = object({}, {NodeCertExpiry = one, ForceRotate = count(0, 0)}), TaskDefaults = object({}),
  EncryptionConfig = object({AutoLockManagers = flag}),
})

-- A config or a secret, without a template, which could read other secrets of the service.
local stored = object({Name = text(STORED), Labels = labels, Data = text("[%w+/]+=?=?", "")})

local command = object({
  Cmd = list(text(), 1), AttachStdout = flag,
}, {AttachStdin = flag, AttachStderr = flag, Tty = flag, Env = texts})

local KINDS = {
  Container = container, Service = service, Network = network, Volume = volume, Swarm = swarm, Command = command,
  Config = stored, Secret = stored,
}

-- nil and the value if the text is a description of this kind; else the reason.
function fault_of(kind, text)
  local done, found = pcall(function()
    local value = read_json(text, DEEPEST)
    KINDS[kind](value, kind)
    return value
  end)
  if done then return nil, found end
  return type(found) == "table" and found.why or "it cannot be judged"
end
