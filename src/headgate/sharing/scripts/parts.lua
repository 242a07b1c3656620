-- The parts of a pool while its store cannot be asked: the arithmetic of pool/parts.py, step by step.

-- The functions of this file: a script may not have more than 200 local variables.
local Parts = {}

function Parts.needed(processes)
  local parts = 1
  while parts < processes do
    parts = parts * 2
  end
  if parts >= 4 and parts * 3 / 4 >= processes then
    return parts * 3 / 4
  end
  return parts
end

-- How many places, or bytes, others may use that hold them or go by their parts.
function Parts.taken(pool, who, kind)
  local taken = 0
  for name, each in pairs(pool.present) do
    if name ~= who then
      local part = kind == PLACES and each[3] or (divided(pool.limits[BYTES_LIMIT], each[2], WHOLE))
      taken = taken + max(part, pool.members[name] and pool.members[name][HOLDS][kind] or 0)
    end
  end
  for name, member in pairs(pool.members) do
    if name ~= who and not pool.present[name] then
      taken = taken + member[HOLDS][kind]
    end
  end
  return taken
end

function Parts.divide(pool, question, now)
  local who, present, count, before = question.member, pool.present, 0, 0
  for name, each in pairs(present) do
    if each[1] <= now then
      present[name] = nil
    end
  end
  if question.leaves or question.lease == 0 then
    present[who] = nil
    return {0, 0, 1}
  end
  local own = present[who] or {0, 0, 0, 0}
  present[who] = own
  own[1] = now + PRESENT
  for name in pairs(present) do
    count = count + 1
    if name < who then
      before = before + 1
    end
  end
  local needed = Parts.needed(count)
  if needed >= pool.parts or now >= pool.parts_until then
    if needed > pool.parts and pool.parts > 0 then
      pool.called = next_stamp(pool)
    end
    pool.parts, pool.parts_until = needed, now + DIVIDED_FOR
  end
  local given, final = {}, 1
  for kind, whole in ipairs({WHOLE, pool.limits[PLACES_LIMIT]}) do
    local even = floor(whole / pool.parts) + (before < whole % pool.parts and 1 or 0)
    local free, told = whole, exact(question.part[kind])
    for name, each in pairs(present) do
      if name ~= who then
        free = free - each[kind + 1]
      end
    end
    local part = max(0, min(even, free))
    if part < even or told > part then
      final = 0
    end
    own[kind + 1] = max(part, told)
    given[kind] = part
  end
  given[3] = final
  return given
end

