-- Parts of the rates that are kept for members far from the store: the arithmetic of pool/flow.py, step by step. Comes
-- after integers.lua, state.lua and rates.lua.

-- What all parts of a rate are together.
local ALL = 1000000

-- The functions of this file: a script may not have more than 200 local variables.
local Flow = {}

-- Whether what a member of that doubt is granted has to be a flow, or a shift.
function Flow.is_far(rates, doubt, batches)
  local far = false
  for i, rate in ipairs(rates) do
    if rate[KIND] == STRICT then
      return false
    end
    local heaviest = 0
    for _, batch in ipairs(batches) do
      heaviest = max(heaviest, batch[i])
    end
    local part = FEW_PART * heaviest > most(rate) and FAR_PART or HALF
    far = far or part * doubt > time_for(rate, most(rate))
  end
  return far
end

-- Whether these are so few units, with those that may be used late, that they may come together: no more than that part
-- of a burst.
function Flow.are_few(rates, batches, part)
  for i, rate in ipairs(rates) do
    local units = 0
    for _, batch in ipairs(batches) do
      units = units + batch[i]
    end
    for _, doubt in ipairs(rate[DOUBTS]) do
      units = units + doubt[3]
    end
    if part * time_for(rate, units) > time_for(rate, most(rate)) then
      return false
    end
  end
  return true
end

-- The part that is kept for a member, at that moment or later.
function Flow.kept_for(member, at)
  local kept = 0
  for _, flow in ipairs(member[FLOWS]) do
    if flow[1] > at then
      kept = max(kept, flow[2])
    end
  end
  return kept
end

function Flow.kept_for_all(members, at)
  local kept = 0
  for _, member in pairs(members) do
    kept = kept + Flow.kept_for(member, at)
  end
  return kept
end

-- From when on, and not before `at`, that part can be kept beside those of these members.
function Flow.room_from(others, share, at)
  local ends = {}
  for _, each in ipairs(others) do
    for _, flow in ipairs(each[FLOWS]) do
      if flow[1] > at then
        ends[#ends + 1] = flow[1]
      end
    end
  end
  table.sort(ends)
  local i = 0
  while Flow.kept_for_all(others, at) + share > ALL and i < #ends do
    i = i + 1
    at = ends[i]
  end
  return at
end

-- The part at that moment, if each of these is kept until then, and the next one from then on.
function Flow.part_at(parts, at, last)
  for _, part in ipairs(parts) do
    if part[1] > at then
      return part[2]
    end
  end
  return last or 0
end

function Flow.not_over(parts, now)
  local left = {}
  for _, part in ipairs(parts) do
    if part[1] > now then
      left[#left + 1] = part
    end
  end
  return left
end

-- The flows of each member that has some.
function Flow.of_members(pool)
  local found = {}
  for _, member in pairs(pool.members) do
    if #member[FLOWS] > 0 then
      found[#found + 1] = member[FLOWS]
    end
  end
  return found
end

-- Take from the rates what was kept since the pool was asked last.
function Flow.pass_by(pool, since)
  local now, used, begin, ends, of_members = pool.now, 0, since, {}, Flow.of_members(pool)
  local function note(parts)
    for _, part in ipairs(parts) do
      if part[1] > since then
        ends[#ends + 1] = min(part[1], now)
      end
    end
  end
  for _, flows in ipairs(of_members) do
    note(flows)
  end
  note(pool.beside)
  table.sort(ends)
  for _, stop in ipairs(ends) do
    local kept = 0
    for _, flows in ipairs(of_members) do
      kept = kept + Flow.part_at(flows, begin)
    end
    used = exact(used + (stop - begin) * max(Flow.part_at(pool.beside, begin), kept))
    begin = stop
  end
  for _, member in pairs(pool.members) do
    member[FLOWS] = Flow.not_over(member[FLOWS], now)
  end
  pool.beside = Flow.not_over(pool.beside, now)
  if used > 0 then
    for _, rate in ipairs(pool.rates) do
      if rate[KIND] ~= STRICT then
        flow_by(rate, since, rounded_up(used, 1, ALL))
      end
    end
  end
end

-- Until when which part is kept for all members, and which one after that: flows go on as they end.
function Flow.kept_from_now(pool)
  local ends, last, of_members = {}, 0, Flow.of_members(pool)
  for _, flows in ipairs(of_members) do
    for i = 1, #flows - 1 do
      ends[#ends + 1] = flows[i][1]
    end
    last = last + flows[#flows][2]
  end
  for _, part in ipairs(pool.beside) do
    ends[#ends + 1] = part[1]
  end
  table.sort(ends)
  local parts, begin = {}, pool.now
  for _, stop in ipairs(ends) do
    if stop > begin then
      local kept = 0
      for _, flows in ipairs(of_members) do
        kept = kept + Flow.part_at(flows, begin, flows[#flows][2])
      end
      parts[#parts + 1] = {stop, max(kept, Flow.part_at(pool.beside, begin))}
      begin = stop
    end
  end
  return {parts = parts, last = last}
end

-- What is left beside that part: at least a little, so that every moment comes.
function Flow.free_beside(kept)
  return max(ALL - kept, ALL / MOST_LONGER)
end

-- When that moment comes, if it was reckoned without what is kept from now on.
function Flow.beside(kept, at, now)
  local begin, left = now, at - now
  for _, part in ipairs(kept.parts) do
    local free = Flow.free_beside(part[2])
    local passes = (divided(part[1] - begin, free, ALL))
    if left < passes then
      return exact(begin + (divided(left, ALL, free)))
    end
    begin, left = part[1], left - passes
  end
  return exact(begin + (divided(left, ALL, Flow.free_beside(kept.last))))
end

-- Which moment is reached by then, if it is reckoned without what is kept from now on.
function Flow.alone(kept, at, now)
  local begin, reached = now, now
  for _, part in ipairs(kept.parts) do
    local free = Flow.free_beside(part[2])
    if at < part[1] then
      return reached + (divided(at - begin, free, ALL))
    end
    reached = reached + (divided(part[1] - begin, free, ALL))
    begin = part[1]
  end
  return exact(reached + (divided(at - begin, Flow.free_beside(kept.last), ALL)))
end

-- Keep that until then, if flows end before: others were told by it when they may use the rest.
function Flow.keep_beside(pool, kept, until_)
  local parts, any = {}, false
  local function append(stop, part)
    any = any or part > 0
    part = ALL - Flow.free_beside(part)
    if #parts > 0 and parts[#parts][2] == part then
      parts[#parts][1] = stop
    else
      parts[#parts + 1] = {stop, part}
    end
  end
  for _, part in ipairs(pool.beside) do
    until_ = max(until_, part[1])
  end
  for _, part in ipairs(kept.parts) do
    if part[1] < until_ then
      append(part[1], part[2])
    end
  end
  append(until_, Flow.part_at(kept.parts, until_ - 1, kept.last))
  if any then
    pool.beside = parts
  end
end

-- What may be used at once of all flows, and of one more with that batch, as time of the rates.
function Flow.together(pool, lump)
  local lumps, few = lump, false
  for _, member in pairs(pool.members) do
    if #member[FLOWS] > 0 then
      lumps = lumps + member[LUMP]
    end
  end
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      local time = time_for(rate, most(rate))
      few = few and min(few, time) or time
    end
  end
  return max(lumps, min(2 * lumps, floor((few or 0) / FEW_PART)))
end

-- Keep that part of the rates for a member. A larger one was told to it before: that is used first.
function Flow.keep(member, share, begins, until_, now)
  local flows = member[FLOWS]
  local last = flows[#flows]
  if not last then
    if begins > now then
      flows[1] = {begins, 0}
    end
    flows[#flows + 1] = {until_, share}
  elseif last[2] > share then
    flows[#flows + 1] = {max(until_, last[1]), share}
  else
    flows[#flows] = {max(until_, last[1]), share}
  end
end

