-- Shifts: times for which members far from the store have the rates to themselves: the arithmetic of
-- pool/shift.py, step by step. Comes after integers.lua, state.lua, rates.lua and flow.lua.

-- The functions of this file: a script may not have more than 200 local variables.
local Shift = {}

-- How long a turn is at least, if that many members are short and some of them go apart.
function Shift.turn_apart(pool, member, many, now)
  local sum, longest = 0, 0
  for _, each in pairs(pool.members) do
    if each == member or each[SHORT_UNTIL] > now then
      sum, longest = sum + each[OWN_GAP], max(longest, each[OWN_GAP])
    end
  end
  local turn = floor(min((GAPS - 1) * sum, LONGEST_ROUND) / many)
  return max(floor(turn * (many - 1) / many), floor(longest / 2))
end

-- Whether the members whose shift it is go on before this one begins another.
function Shift.goes_on_first(pool, member, who, turn, now)
  local apart = pool.apart
  if apart == who or (apart == '' and member[OWN_GAP] == 0) then
    return false
  end
  for name, each in pairs(pool.members) do
    local theirs = name == apart or (apart == '' and each[OWN_GAP] == 0 and #each[FLOWS] == 0)
    if theirs and each[SHORT_UNTIL] > now and each[SERVED] < member[SERVED] + turn then
      return true
    end
  end
  return false
end

-- Have the shift be that of this member, or of all that are near. The gap of the last one passes.
function Shift.take(pool, member, who)
  local apart = member[OWN_GAP] > 0 and who or ''
  if pool.apart == apart then
    return
  end
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      rate[FULL_AT], rate[GAP] = exact(rate[FULL_AT] + rate[GAP]), 0
    end
  end
  pool.apart, pool.prepaid = apart, member[OWN_GAP]
  member[SERVED] = exact(member[SERVED] + pool.prepaid)
end

-- Count what was granted to the member whose shift it is, and leave a gap behind it.
function Shift.serve(pool, member, takes)
  local paid = min(pool.prepaid, takes)
  pool.prepaid = pool.prepaid - paid
  member[SERVED] = exact(member[SERVED] + takes - paid)
  for _, rate in ipairs(member[OWN_GAP] > 0 and pool.rates or {}) do
    if rate[KIND] ~= STRICT then
      rate[GAP] = max(rate[GAP], member[OWN_GAP])
    end
  end
end

