-- What HAProxy asks: whether a description is one of the engines' (descriptions.lua), whose something is, and what of a Swarm
-- may be told.
local daemon = "unix@" .. os.getenv("DAEMON")

local function ask(path)
  return core.httpclient():get{url = "http://docker" .. path, headers = {host = {"docker"}}, dst = daemon, timeout = 10000}
end

-- Sets txn.fault where the body is no description for this call.
core.register_action("judge", {"http-req"}, function(txn)
  local body = txn.f:req_body() or ""
  -- Head and body share a buffer; what did not fit in has not been seen.
  if #body ~= txn.f:req_body_size() then
    txn:set_var("txn.fault", "it is not here as a whole")
    return
  end
  local fault = fault_of(txn.f:path(), body)
  if fault then txn:set_var("txn.fault", fault:sub(1, 300)) end
end)

local LABELS = {
  containers = function(found) return found.of.Config.of.Labels end,
  services = function(found) return found.of.Spec.of.Labels end,
  networks = function(found) return found.of.Labels end,
}

-- Sets txn.whose to "nobodys" or "anothers" where what the path names is not there, or not of an installation of Commonage,
-- to "unknown" where the daemon does not say.
core.register_action("whose", {"http-req"}, function(txn)
  local kind, name = txn.f:path():match("/(%l+)/([%w][%w_.-]*)[%l/]*$")
  local answer = ask("/" .. kind .. "/" .. name .. (kind == "containers" and "/json" or ""))
  if answer.status ~= 200 then
    txn:set_var("txn.whose", answer.status == 404 and "nobodys" or "unknown")
    return
  end
  local read, ours = pcall(function() return LABELS[kind](read_json(answer.body, 64)).of["commonage.installation"].kind == "text" end)
  if not (read and ours) then txn:set_var("txn.whose", "anothers") end
end)

-- What the daemon says of its Swarm, without what lets machines in as managers: whoever is one has all machines.
core.register_service("swarm", "http", function(applet)
  local answer = ask(applet.path)
  local said = string.gsub(answer.body or "", '"Manager":"[^"]*"', '"Manager":""')
  applet:set_status(answer.status or 503)
  applet:add_header("content-type", "application/json")
  applet:add_header("content-length", string.len(said))
  applet:start_response()
  applet:send(said)
end)
