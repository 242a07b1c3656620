-- Shifts: times for which members far from the store have the rates to themselves: the arithmetic of
-- pool/shift.py, step by step. Comes after integers.lua, state.lua, rates.lua and flow.lua.

-- The functions of this file: a script may not have more than 200 local variables.
local Shift = {}

-- How long a turn of members far away is, if that many members are short.
function Shift.turn_apart(pool, member, many, now)
  local gaps = 0
  for _, each in pairs(pool.members) do
    if each == member or each[SHORT_UNTIL] > now then
      gaps = gaps + each[OWN_GAP]
    end
  end
  return floor(floor(min((GAPS - 1) * gaps, LONGEST_ROUND) / many) * (many - 1) / many)
end

-- Whether the members whose shift it is go on first, or others are to begin the next one.
function Shift.others_first(pool, member, who, turn, now)
  local apart = pool.apart
  if apart == who then
    return false
  end
  for name, each in pairs(pool.members) do
    if each ~= member and each[SHORT_UNTIL] > now then
      local first = each[OWN_GAP] > 0 and member[SERVED] >= each[SERVED] + turn
      if apart ~= '' or member[OWN_GAP] > 0 then
        local theirs = name == apart or (apart == '' and each[OWN_GAP] == 0 and #each[FLOWS] == 0)
        first = theirs and (each[SERVED] < member[SERVED] + turn or (name == apart and pool.prepaid > 0))
      end
      if first then
        return true
      end
    end
  end
  return false
end

-- Have the shift be that of this member, or of all that are near. The gap of the last one passes.
function Shift.take(pool, member, who, now, briefly, few)
  local apart = member[OWN_GAP] > 0 and who or ''
  if pool.apart == apart then
    return
  end
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      rate[FULL_AT], rate[GAP] = exact(rate[FULL_AT] + rate[GAP]), 0
    end
  end
  local least = false
  for _, each in pairs(few and pool.members or {}) do
    if each ~= member and each[SHORT_UNTIL] > now then
      least = least and min(least, each[SERVED]) or each[SERVED]
    end
  end
  member[SERVED] = max(member[SERVED], least or 0)
  pool.apart, pool.prepaid = apart, briefly and 0 or member[OWN_GAP]
  member[SERVED] = exact(member[SERVED] + member[OWN_GAP])
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

