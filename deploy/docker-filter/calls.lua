-- The calls that the filter passes on. A call has a method, a path, the keys of its query, a kind of body, and may name an object.
-- A request line that HAProxy and Docker could read in two ways is refused. filter.lua calls call_of; descriptions.lua has the bodies.

-- The versions of Docker's API that the engines speak (src/commonage/engines/containers/docker_api.py). A daemon drops fields
-- that the version of a request does not know: before 1.41 these include a service's capabilities and limits.
local VERSIONS = {["1.41"] = true, ["1.50"] = true}

local ATTEMPT = ("[0-9a-hjkmnp-tv-z]"):rep(13) .. "%-%d+"
local PLACES = {
  id = "%w[%w_.-]*",
  own = "commonage%-" .. ATTEMPT,
  probe = "commonage%-probe%-%x+",
  exec = ("[0-9a-f]"):rep(64),
  image = "%w[%w_.:/@-]*",
}
local INSTALLATION = "commonage%.installation=%x+"
local OURS = {
  '{"label": %["' .. INSTALLATION .. '"%]}',
  '{"label": %["' .. INSTALLATION .. '", "commonage%.attempt=[%w_-]+"%]}',
}
local OVERLAYS = {'{"driver": %["overlay"%]}', '{"scope": %["swarm"%]}'}
local EVENTS = {'{"type": %["container"%], "event": %["[a-z", ]+"%], "label": %["' .. INSTALLATION .. '"%]}'}

-- {methods, path, required keys of the query, optional keys}, each key with the patterns that its value may match.
-- `of`: the kind of object that the path names, which must carry the label of an installation; `body`: the kind of description;
-- `registry`: the account of a registry is passed on; `service`: this filter answers, with what it asked the daemon.
local DOCKER = {
  {"GET HEAD", "/_ping"},
  {"GET", "/version"},
  {"GET", "/info"},
  {"GET", "/events", {filters = EVENTS, since = {"%d+"}}},
  {"GET", "/containers/json", {all = {"1"}, filters = OURS}},
  {"POST", "/containers/create", {name = {PLACES.own}}, body = "Container"},
  {"GET", "/containers/{id}/json", of = "containers"},
  {"POST", "/containers/{id}/start", of = "containers"},
  {"POST", "/containers/{id}/kill", {signal = {"[A-Z0-9]+"}}, of = "containers"},
  {"DELETE", "/containers/{id}", {}, {force = {"%w+"}, v = {"%w+"}}, of = "containers"},
  {"POST", "/containers/{own}/exec", of = "containers", body = "Command"},
  {"POST", "/exec/{exec}/resize", {h = {"%d+"}, w = {"%d+"}}, of = "exec"},
  {"GET", "/exec/{exec}/json", of = "exec"},
  {"GET", "/images/{image}/json"},
  {"POST", "/images/create", {fromImage = {PLACES.image}}, {tag = {"%w[%w_.:-]*"}}, registry = true},
  {"GET", "/networks", {filters = OURS}},
  {"POST", "/networks/create", body = "Network"},
  {"GET DELETE", "/networks/{id}", of = "networks"},
  {"POST", "/volumes/create", body = "Volume"},
  {"DELETE", "/volumes/{probe}", {}, {force = {"0"}}},
}
local SWARM = {
  {"GET", "/swarm", service = "swarm"},
  -- Of the Swarm, only the token for workers may be changed.
  {"POST", "/swarm/update", {version = {"%d+"}, rotateWorkerToken = {"true"}}, body = "Swarm"},
  {"GET", "/networks", {filters = OVERLAYS}},
  {"GET", "/nodes"},
  {"DELETE", "/nodes/{id}", {force = {"true"}}},
  {"GET", "/tasks", {filters = OURS}},
  {"GET", "/services", {filters = OURS}},
  {"POST", "/services/create", body = "Service"},
  {"GET DELETE", "/services/{id}", of = "services"},
  {"GET", "/configs", {filters = OURS}},
  {"POST", "/configs/create", body = "Config"},
  {"GET DELETE", "/configs/{id}", of = "configs"},
  {"GET", "/secrets", {filters = OURS}},
  {"POST", "/secrets/create", body = "Secret"},
  {"GET DELETE", "/secrets/{id}", of = "secrets"},
}

local CALLS = {}
local function add(calls)
  for _, call in ipairs(calls) do
    local methods, path = call[1], call[2]:gsub("[.-]", "%%%0"):gsub("{(%l+)}", function(place) return "(" .. PLACES[place] .. ")" end)
    for method in methods:gmatch("%u+") do
      CALLS[#CALLS + 1] = {
        method = method, path = "^" .. path .. "$", required = call[3] or {}, optional = call[4] or {},
        of = call.of, body = call.body, registry = call.registry, service = call.service,
      }
    end
  end
end
add(DOCKER)
if os.getenv("COMMONAGE_ENGINE") == "swarm" then add(SWARM) end

-- The version and the rest of the path. Without a version a daemon takes its newest.
local function read_path(path)
  local version, rest = path:match("^/v(%d+%.%d+)(/.*)$")
  if not VERSIONS[version] then
    return nil, "the path has no version of the API that the engines speak; use /v1.41 or /v1.50"
  end
  if not rest:find("^[%w/._:@-]+$") then return nil, "the path has an escape or another character that no engine sends" end
  for part in (rest:sub(2) .. "/"):gmatch("([^/]*)/") do
    if part == "" or part == "." or part == ".." then return nil, "the path has an empty part, . or .." end
  end
  return "/v" .. version, rest
end

-- The keys and values of a query. A key has no escapes, a value, and comes once; a value may have escapes.
local function read_query(query)
  local found = {}
  for part in (query == "" and "" or query .. "&"):gmatch("([^&]*)&") do
    local key, value = part:match("^(%a+)=([%w%%+~._:/@,!$'()*-]*)$")
    if not key then return nil, "the query has a part that is not KEY=VALUE with a plain key" end
    if found[key] then return nil, "the query has a key twice: " .. key end
    if value:gsub("%%%x%x", ""):find("%", 1, true) then return nil, "the query has an incomplete escape" end
    found[key] = value:gsub("+", " "):gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
  end
  return found
end

local function fits(value, patterns)
  for _, pattern in ipairs(patterns) do
    if value:find("^" .. pattern .. "$") then return true end
  end
  return false
end

local function fault_of_query(query, call)
  for key, value in pairs(query) do
    local patterns = call.required[key] or call.optional[key]
    if not patterns then return "the query has a key that no engine sends with this call: " .. key end
    if not fits(value, patterns) then return "the query has a value that no engine sends with this call: " .. key end
  end
  for key in pairs(call.required) do
    if not query[key] then return "the query lacks a key of this call: " .. key end
  end
  return nil
end

-- The call, the version's part of the path (/v1.41), and the name in the path; nil and the reason if there is no such call.
-- `target` is the second word of the request line, exactly as it was sent.
function call_of(method, target)
  local path, mark, query = target:match("^(/[^?]*)(%??)(.*)$")
  if not path then return nil, "the request line has no path; send a path, and neither a host nor *" end
  if mark == "?" and query == "" then return nil, "the query is empty; leave out the ?" end
  local version, rest = read_path(path)
  if not version then return nil, rest end
  local values, why = read_query(query)
  if not values then return nil, why end
  why = "no engine makes this call"
  for _, call in ipairs(CALLS) do
    local from, _, name = rest:find(call.path)
    if from and call.method == method then
      why = fault_of_query(values, call)
      if not why then return call, version, name end
    end
  end
  return nil, why
end

-- The version's part of the path and the id of the exec that this request starts; nil for any other request.
function exec_of_stream(request)
  local version, exec = request:match("^POST /v(1%.%d+)/exec/(" .. PLACES.exec .. ")/start HTTP/1%.0\r\n")
  if VERSIONS[version] then return "/v" .. version, exec end
end
