-- What members may have been granted and not used yet, when their callers have gone: the arithmetic of pool/unused.py,
-- step by step. Comes after integers.lua, state.lua and rates.lua.

-- Have each rate keep back what members that were granted something of late may have unused.
local function keep_back(pool, now)
  local reaches, resting = {}, 0
  for _, member in pairs(pool.members) do
    if #member[FLOWS] == 0 and member[LAST_START] > now - USED_WITHIN then
      reaches[#reaches + 1] = member[REACH]
      resting = resting + (member[WAITING] == 0 and 1 or 0)
    end
  end
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      keep_unused(rate, reaches, resting)
    end
  end
end
