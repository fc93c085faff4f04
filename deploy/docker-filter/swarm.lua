-- What the daemon says of its Swarm, without what lets machines in as managers: whoever is one has all machines.
local daemon = "unix@" .. os.getenv("DAEMON")

core.register_service("swarm", "http", function(applet)
  local answer = core.httpclient():get{url = "http://127.0.0.1" .. applet.path, dst = daemon, timeout = 10000}
  local said = string.gsub(answer.body or "", '"Manager":"[^"]*"', '"Manager":""')
  applet:set_status(answer.status or 503)
  applet:add_header("content-type", "application/json")
  applet:add_header("content-length", string.len(said))
  applet:start_response()
  applet:send(said)
end)
