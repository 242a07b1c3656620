-- One look at one pool. Changes nothing. Comes after state.lua.
--
-- KEYS[1]  the pool                                             ARGV[1]  the number of the layout
-- reply    the pool as JSON, as `Pool.packed` has it but without answers, and the server's time in microseconds;
--          nothing if there is no such pool
--
-- The JSON is written by hand: cjson rounds large numbers, and cannot tell an empty list from an empty object.

local text = redis.pcall('GET', KEYS[1])
local pool = type(text) == 'string' and unpacked(text, tonumber(ARGV[1]))
if not pool then
  return false
end

local function json(value, last)
  if type(value) == 'number' then
    return string.format('%.0f', value)
  elseif type(value) == 'table' then
    local texts = {}
    for i = 1, last or #value do
      texts[i] = json(value[i])
    end
    return '[' .. table.concat(texts, ',') .. ']'
  elseif value then
    return cjson.encode(value)
  end
  return 'null'
end

local members = {}
for name, member in pairs(pool.members) do
  members[#members + 1] = json(name) .. ':' .. json(member, WAITING)
end
local seen = {
  ARGV[1], json(pool.rates), json(pool.limits), json(pool.units), json(pool.version),
  '{' .. table.concat(members, ',') .. '}', json(pool.window), json(pool.stamp), json(pool.now),
}
return {'[' .. table.concat(seen, ',') .. ']', json(microseconds(redis.call('TIME')))}
