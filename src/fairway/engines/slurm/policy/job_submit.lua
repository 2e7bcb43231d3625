local GPU_FIELDS = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }
local SHARES = { shard = true, mps = true } -- GRES by which jobs share a GPU
local URGENT = 4000000000 -- above anything that fair-share, age and QOS add up to
local NO_VAL = 4294967294
local REFUSED, NO_QOS, NO_TYPE = 2002, 2066, 2072 -- slurm_errno.h

local function refuse(code, ...)
  slurm.log_user("fairway: " .. string.format(...))
  return code
end

local function each(text)
  return (text or ""):gmatch("[^,]+")
end

-- The partitions that a job asks for: those over the nodes of pools, by the site's names, and the others.
local function asked_partitions(text)
  local own, others, seen = {}, {}, {}
  for name in each(text) do
    name = OWN_PARTITION[name] or name
    if not seen[name] then
      local list = POOLS[name] and own or others
      list[#list + 1], seen[name] = name, true
    end
  end
  return own, others
end

-- The GPU type of a request that names none: the only one in these partitions, or nil if there are several.
local function only_type(own)
  local only
  for _, name in ipairs(own) do
    for kind in pairs(POOLS[name].types) do
      if not SHARES[kind] then
        if only ~= nil and only ~= kind then return nil end
        only = kind
      end
    end
  end
  return only or ""
end

-- The shares of a GPU that a part of a request names, if a pool of these partitions counts them.
local function shares_of(part, own)
  local name = part:match("^gres[/:](%a+)")
  if not SHARES[name] then return nil end
  for _, partition in ipairs(own) do
    if POOLS[partition].types[name] ~= nil then return name end
  end
  return nil
end

-- Whether a request is for GPUs, or for shares of them that a pool counts.
local function asks_for_gpus(request, own)
  if request:find("gres[/:]gpu") then return true end
  for part in each(request) do
    if shares_of(part, own) then return true end
  end
  return false
end

-- How to ask for what the pools of these partitions have, if jobs share their GPUs.
local function shares_hint(own)
  for _, name in ipairs(own) do
    for kind in pairs(POOLS[name].types) do
      if SHARES[kind] then return ": jobs share them, --gres=" .. kind .. ":N" end
    end
  end
  return ""
end

-- A request with each GPU typed, and the types it names; nil if a type is missing and there are several.
local function typed(text, only, types, own)
  local parts = {}
  for part in each(text) do
    local shares = shares_of(part, own)
    if shares then types[shares] = true end
    local head, rest = part:match("^(gres[/:]gpu)(.*)$")
    if head ~= nil and not part:match("^gres[/:]gpu[%w]") then
      local kind, count = rest:match("^[:=]([^:=]*%a[^:=]*)[:=]?(%d*)$")
      if kind == nil then
        kind, count = only, rest:match("(%d*)$")
        if kind == nil then return nil end
      end
      types[kind] = true
      if kind ~= "" then part = head .. ":" .. kind .. (count ~= "" and ":" .. count or "") end
    end
    parts[#parts + 1] = part
  end
  return table.concat(parts, ",")
end

-- What a job asks for now: what it says, else what it said when it was submitted.
local function reader(job, before)
  return function(field)
    local value = job[field]
    if value == nil and before ~= nil then value = before[field] end
    if value == "" then value = nil end
    return value
  end
end

local function teams_of(user)
  local mine = {}
  for name, team in pairs(TEAMS) do
    if user ~= nil and team.members[user] then mine[#mine + 1] = name end
  end
  table.sort(mine)
  return #mine > 0 and "yours: " .. table.concat(mine, ", ") or "you are in none"
end

-- The second partitions of these, and the others as they are.
local function lent_partitions(own, others)
  local names = {}
  for _, name in ipairs(own) do names[#names + 1] = POOLS[name].lent end
  for _, name in ipairs(others) do names[#names + 1] = name end
  return table.concat(names, ",")
end

local function both_partitions(own, others)
  local names = {}
  for _, name in ipairs(own) do
    names[#names + 1] = name
    names[#names + 1] = POOLS[name].lent
  end
  for _, name in ipairs(others) do names[#names + 1] = name end
  return table.concat(names, ",")
end

-- A job that is not governed runs with its own account, QOS and limits, where guarantees do not wait behind it.
local function pass(job, before, own, others)
  for name in each(job.qos) do
    if name:find("^fairway%.") or name:find("%.own$") or name:find("%.kin$") then -- inherited from a team's account
      return refuse(NO_QOS, "QOS %s is for GPU jobs of teams", name)
    end
  end
  if before == nil or job.partition ~= nil then job.partition = lent_partitions(own, others) end
  return slurm.SUCCESS
end

-- The partitions whose GPUs are of this type, and their pool; nil and the reason if that is not one pool.
local function pool_of(kind, own)
  local pool, its = nil, {}
  for _, name in ipairs(own) do
    local here = POOLS[name].types[kind]
    if here ~= nil then
      if pool ~= nil and pool ~= here then return nil, its end
      pool = here
      its[#its + 1] = name
    end
  end
  return pool, its
end

-- The partitions that the site's own lists open to one of its QOS.
local function open_to(own, qos)
  local open = {}
  for _, name in ipairs(own) do
    if not POOLS[name].denied[qos] then open[#open + 1] = name end
  end
  return open
end

-- A team's GPU job runs as another QOS, yet may use the partitions of the site's QOS that it names, or has by default.
-- If it names none and its default opens no partition, any other of the account's QOS counts. Returns it, and the
-- partitions.
local function site_qos_of(team, named, own)
  if not team.site then return "", own end
  local qos = team.site[named] and named or team.default
  local open, others = open_to(own, qos), {}
  if #open == 0 and not team.site[named] then
    for name in pairs(team.site) do others[#others + 1] = name end
    table.sort(others)
  end
  for _, other in ipairs(others) do
    local its = open_to(own, other)
    if #its > 0 then return other, its end
  end
  return qos, open
end

-- What a QOS of the site says about the time of jobs still counts for a team's GPU jobs, which run as other ones.
local function within_wall(job, before, team, own, qos)
  local wall = not team.wall and MAX_WALL[qos]
  if not wall then return true end
  local limit = job.time_limit
  if limit == nil or limit == NO_VAL then
    if before ~= nil then return true end
    local default
    for _, name in ipairs(own) do default = math.max(default or 0, POOLS[name].default_time or NO_VAL) end
    if default > wall then job.time_limit = wall end
    return true
  end
  return limit <= wall
end

local function words_of(team)
  local words = {}
  for word in pairs(team.words) do words[#words + 1] = word end
  table.sort(words)
  return table.concat(words, ", ")
end

-- `before` is the job as it was, if it waits already. Slurm lets only root give one of those a priority or an
-- admin comment, so nobody else makes it urgent, or stops it being so.
local function govern(job, before, own, others, uid)
  local get = reader(job, before)
  local asked = table.concat(own, ",")

  local types, is_gpu, full = {}, false, {}
  local only = only_type(own)
  for _, field in ipairs(GPU_FIELDS) do
    local request = get(field)
    if request ~= nil and asks_for_gpus(request, own) then
      is_gpu = true
      full[field] = typed(request, only, types, own) or false
    end
  end

  local user = get("user_name")
  if not is_gpu and user == SERVICE_USER and get("name") == INTERVENTION_JOB then
    job.partition, job.priority = POOLS[own[1]].lent, URGENT
    return slurm.SUCCESS
  end

  local account = get("account") or DEFAULT_TEAM[user] or get("default_account")
  account = account and account:lower() -- as Slurm stores names
  local team = account and TEAMS[account]
  if team == nil then
    if not is_gpu or OTHER_ACCOUNTS[account or ""] then return pass(job, before, own, others) end
    return refuse(REFUSED, "%s is no team here: --account=TEAM (%s)", tostring(account), teams_of(user))
  end
  -- An exclusive job gets every GPU of its nodes.
  if not is_gpu and job.shared ~= 0 and team.site and (WORDS[job.qos or ""] == nil or SITE_QOS[job.qos]) then
    return pass(job, before, own, others)
  end

  local listed
  for field, request in pairs(full) do
    if not request then
      return refuse(NO_TYPE, "partition %s has several GPU types, name one: --gres=gpu:TYPE:N", asked)
    end
    if request ~= get(field) then job[field] = request end
  end
  for kind in pairs(types) do
    local pool, its = pool_of(kind, own)
    if pool == nil then
      if #its > 0 then return refuse(REFUSED, "name one pool's partition, not %s", asked) end
      if team.site then return pass(job, before, own, others) end -- GPUs of no pool
      local what = kind == "" and "whole GPUs" or "GPUs of type " .. kind
      return refuse(NO_TYPE, "%s in partition %s belong to no pool%s", what, asked, shares_hint(own))
    end
    if listed ~= nil then return refuse(NO_TYPE, "ask for one GPU type in one job") end
    listed = team.pools[pool]
    if listed == nil then return refuse(REFUSED, "team %s has no grant on pool %s", account, pool) end
    own = its
  end
  for _, partition in ipairs(own) do
    if POOLS[partition].spot and is_gpu then
      if job.requeue ~= 1 and not (get("comment") or ""):find("tolerates-loss", 1, true) then
        return refuse(REFUSED, "nodes of %s may vanish: say that the job may run again, --requeue", partition)
      end
      job.requeue = 1
    end
  end

  local word = job.qos and job.qos:lower()
  if word == nil or word == "" then
    local said = before ~= nil and (before.admin_comment or ""):match("^fairway:(.+)$")
    word = said or DEFAULT_WORD
  end
  local class = WORDS[word]
  local site_qos
  site_qos, own = site_qos_of(team, (job.qos or ""):lower(), own)
  if #own == 0 then return refuse(NO_QOS, "QOS %s may not use partition %s", site_qos, asked) end
  if not within_wall(job, before, team, own, site_qos) then
    return refuse(REFUSED, "jobs of QOS %s may run for %d minutes: --time", site_qos, MAX_WALL[site_qos])
  end
  if class == nil and team.site and team.site[word] then
    slurm.log_user(string.format("fairway: GPU jobs of %s run by priority, not as QOS %s", account, word))
    word = DEFAULT_WORD
    class = WORDS[word]
  end
  if class == nil then -- a QOS by its own name: only this team's for this pool
    local mine = "," .. WAITING_URGENT .. "," .. (listed or LENT) .. "," .. (team.low and LOW or "") .. ","
    for name in each(word) do
      if not mine:find("," .. name .. ",", 1, true) then
        return refuse(NO_QOS, "%s is neither a priority nor a QOS of team %s on %s: leave --qos out, or name one of %s",
          name, account, asked, words_of(team))
      end
    end
    job.partition = both_partitions(own, others)
    job.account = account
    return slurm.SUCCESS
  end
  if not team.words[word] then
    return refuse(NO_QOS, "team %s may not use the priority %s", account, word)
  end

  if before ~= nil and uid ~= 0 then
    local was_urgent = (before.qos or ""):find(WAITING_URGENT, 1, true) ~= nil
    if class.urgent or was_urgent then
      return refuse(NO_QOS, "a job that waits cannot change from or to an urgent priority: submit it again")
    end
  else
    job.admin_comment = "fairway:" .. word
  end
  job.account = account
  if class.preemptible or not is_gpu then -- a guaranteed job without GPUs would take GPU jobs' places
    job.qos = class.preemptible and LOW or LENT
    job.partition = lent_partitions(own, others)
    return slurm.SUCCESS
  end
  job.qos = listed
  job.partition = listed == LENT and lent_partitions(own, others) or both_partitions(own, others)
  if class.urgent then
    job.qos = WAITING_URGENT .. "," .. listed -- nothing runs as the first one: it is how such jobs are found
    job.priority = URGENT + class.rank
  end
  return slurm.SUCCESS
end

-- Answers which table differs from what Fairway expects, as a number: slurmrestd passes on no text of a refusal.
-- Slurm would refuse the job anyway.
local function compare_installed(job)
  local number = 0
  for item, digest in (job.comment or ""):gmatch("(%S+)=(%x+)") do
    number = number + 1
    local mine = INSTALLED[item]
    if mine ~= digest and (mine == nil or digest ~= "0") then return PROBE_ANSWER + number end
  end
  return PROBE_ANSWER
end

function slurm_job_submit(job, partitions, uid)
  if job.name == PROBE_JOB then return compare_installed(job) end
  if uid == 0 then return slurm.SUCCESS end
  local asked = job.partition
  if asked == nil or asked == "" then
    for name, partition in pairs(partitions) do
      if partition.flag_default == 1 then asked = name end
    end
  end
  local own, others = asked_partitions(asked)
  if #own == 0 then return slurm.SUCCESS end -- no pool of the fleet
  return govern(job, nil, own, others, uid)
end

function slurm_job_modify(job, before, partitions, uid)
  if uid == 0 and WORDS[job.qos or ""] == nil then return slurm.SUCCESS end
  local changes = job.partition or job.account or job.qos
  for _, field in ipairs(GPU_FIELDS) do changes = changes or job[field] end
  if changes == nil then return slurm.SUCCESS end
  local own, others = asked_partitions(job.partition or before.partition)
  if #own == 0 then return slurm.SUCCESS end
  return govern(job, before, own, others, uid)
end
