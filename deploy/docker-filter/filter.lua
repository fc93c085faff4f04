-- Judges each request for HAProxy: it must be a call of the engines (calls.lua), its body a description that they write
-- (descriptions.lua), and the object that it names must belong to an installation of Commonage, by the daemon's own answer.
local daemon = "unix@" .. os.getenv("DAEMON")
local LABEL = "commonage.installation"
local MAX_BYTES = 1000000
local WITHIN_MS = 10000

local function ask(path)
  local headers = {host = {"docker"}, ["user-agent"] = {"docker-filter"}}
  return core.httpclient():get{url = "http://docker" .. path, headers = headers, dst = daemon, timeout = WITHIN_MS}
end

-- --- owners of objects --------------------------------------------------------------------------------------------------

local function labels_of_spec(found) return found.of.Spec.of.Labels end
local OBJECTS = {
  containers = {path = "/containers/%s/json", id = "Id", labels = function(found) return found.of.Config.of.Labels end},
  networks = {path = "/networks/%s", id = "Id", labels = function(found) return found.of.Labels end},
  services = {path = "/services/%s", id = "ID", labels = labels_of_spec},
  configs = {path = "/configs/%s", id = "ID", labels = labels_of_spec},
  secrets = {path = "/secrets/%s", id = "ID", labels = labels_of_spec},
}
local GONE = {404, "there is nothing of this name"} -- engines/containers/daemon/connection.py knows these words
local UNKNOWN = {503, "the Docker daemon did not say who owns this object; try again"}
local FOREIGN = {
  403, "this object does not belong to Commonage: it lacks the label " .. LABEL .. ", so the filter before the Docker socket refuses the call",
}

-- The daemon's answer at this path as JSON; nil and the refusal if there is none.
local function read(path)
  local answer = ask(path)
  if answer.status == 404 then return nil, GONE end
  if answer.status ~= 200 then return nil, UNKNOWN end
  local done, found = pcall(read_json, answer.body, 64)
  if not done then return nil, UNKNOWN end
  return found
end

-- The full id of an object of an installation, and the daemon's description of it; nil and the refusal for any other object.
local function own(version, kind, name)
  local about = OBJECTS[kind]
  local found, refusal = read(version .. about.path:format(name))
  if not found then return nil, refusal end
  local done, id = pcall(function()
    return about.labels(found).of[LABEL].kind == "text" and found.of[about.id].raw:match("^%w+$")
  end)
  if not (done and id) then return nil, FOREIGN end
  return id, found
end

-- An exec belongs to the owner of its container.
local function own_exec(version, exec)
  local found, refusal = read(version .. "/exec/" .. exec .. "/json")
  if not found then return nil, refusal end
  local done, container = pcall(function() return found.of.ContainerID.raw:match("^%x+$") end)
  if not (done and container) then return nil, UNKNOWN end
  local id
  id, refusal = own(version, "containers", container)
  if not id then return nil, refusal end
  return exec
end

-- nil, or the refusal: a service may refer to configs and secrets of an installation only, by matching id and name.
local function refusal_of_files(version, service)
  local given = service.of.TaskTemplate.of.ContainerSpec.of
  for kind, word in pairs({configs = "Config", secrets = "Secret"}) do
    for _, reference in ipairs(given[word .. "s"] and given[word .. "s"].of or {}) do
      local id, found = own(version, kind, reference.of[word .. "ID"].raw)
      if not id then return found end
      local name = found.of.Spec.of.Name.raw
      if id ~= reference.of[word .. "ID"].raw or name ~= reference.of[word .. "Name"].raw then return FOREIGN end
    end
  end
  return nil
end

-- --- a request ----------------------------------------------------------------------------------------------------------

-- Other headers could ask the daemon for more than was judged.
local HEADERS = {host = true, ["content-length"] = true, ["content-type"] = true}

local function keep_headers(txn, call)
  for name in pairs(txn.http:req_get_headers()) do
    if not HEADERS[name] and not (call.registry and name == "x-registry-auth") then txn.http:req_del_header(name) end
  end
  txn.http:req_set_header("host", "docker")
  -- The daemon would read the body of a form as more keys of the query.
  txn.http:req_set_header("content-type", "application/json")
end

-- nil, or the refusal.
local function refusal_of_body(txn, call, version)
  local size = txn.f:req_body_size() or 0
  if not call.body then
    if size == 0 then return nil end
    return {403, "this call has no body: the filter before the Docker socket passes on the bodies of descriptions only"}
  end
  if size > MAX_BYTES then
    return {413, "the description is too large: the filter before the Docker socket reads up to 1,000,000 bytes"}
  end
  local body = txn.f:req_body() or ""
  -- Head and body share a buffer: the end of a body that did not fit in has not been read.
  local fault, value = "the description did not arrive as a whole", nil
  if #body == size then fault, value = fault_of(call.body, body) end
  if fault then
    local rule = "the filter before the Docker socket passes on only what the engines write (deploy/docker-filter/descriptions.lua)"
    return {403, fault:sub(1, 300) .. ": " .. rule}
  end
  return call.body == "Service" and refusal_of_files(version, value) or nil
end

-- nil, or the refusal. The path is changed to name the object by its full id, so that the daemon acts on the object that was
-- judged and not on another one that has taken its name.
local function refusal_of(txn, target)
  local call, version, name = call_of(txn.f:method(), target)
  if not call then
    local rule = "the filter before the Docker socket passes on only the calls of the engines (deploy/docker-filter/calls.lua)"
    local reason = version
    return {403, reason .. ": " .. rule}
  end
  local refusal = refusal_of_body(txn, call, version)
  if refusal then return refusal end
  if call.of == "exec" then
    local id
    id, refusal = own_exec(version, name)
    if not id then return refusal end
  elseif call.of then
    local id, why = own(version, call.of, name)
    if not id then return why end
    local path = target:match("^[^?]*")
    local from = version .. "/" .. call.of .. "/"
    txn.http:req_set_path(from .. id .. path:sub(#from + #name + 1))
  end
  if call.service then txn:set_var("txn.service", call.service) end
  keep_headers(txn, call)
  return nil
end

-- Sets txn.passes if the request may pass. After an error or a timeout of this script HAProxy goes on with its next rule, which
-- refuses what was not passed.
core.register_action("judge", {"http-req"}, function(txn)
  local refusal = refusal_of(txn, txn.f:url() or "")
  if not refusal then
    txn:set_var("txn.passes", true)
    return
  end
  local said = '{"message":"' .. txn.c:json(refusal[2], "ascii") .. '"}'
  txn:done(txn:reply{status = refusal[1], headers = {["content-type"] = {"application/json"}}, body = said})
end)

-- The daemon's description of its Swarm without the token for managers: a manager controls all nodes.
core.register_service("swarm", "http", function(applet)
  local answer = ask(applet.path)
  local said = string.gsub(answer.body or "", '"Manager":"[^"]*"', '"Manager":""')
  applet:set_status(answer.status or 503)
  applet:add_header("content-type", "application/json")
  applet:add_header("content-length", string.len(said))
  applet:start_response()
  applet:send(said)
end)

-- --- a stream -----------------------------------------------------------------------------------------------------------

-- Sets txn.passes if the request starts an exec in a container of an installation. The daemon refuses one that does not exist.
core.register_action("judge_stream", {"tcp-req"}, function(txn)
  local version, exec = exec_of_stream(txn.f:req_payload(0, 0) or "")
  if not version then return end
  local id, refusal = own_exec(version, exec)
  if id or refusal == GONE then txn:set_var("txn.passes", true) end
end)
