-- One look at one pool. Changes nothing.
--
-- KEYS[1]  the pool
-- reply    the pool as rules/pool.py has it, without what was answered, and the server's time, as JSON;
--          nothing if no pool is there
--
-- Written by hand: cjson rounds large numbers, and cannot tell an empty list from an empty object.

local LAYOUT = 3 -- as in pool.lua

local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then
  return false -- nothing, or something of somebody else
end
local whole, s = pcall(cmsgpack.unpack, text)
if not whole or type(s) ~= 'table' or s[1] ~= LAYOUT then
  return false
end

local function json(value)
  if type(value) == 'number' then
    return string.format('%.0f', value)
  elseif type(value) == 'table' then
    local texts = {}
    for i, item in ipairs(value) do
      texts[i] = json(item)
    end
    return '[' .. table.concat(texts, ',') .. ']'
  elseif value then
    return cjson.encode(value)
  end
  return 'null'
end

local members = {}
for who, member in pairs(s[5]) do
  members[#members + 1] = json(who) .. ':' .. json(member)
end
local time = redis.call('TIME')

return '{"rates":' .. json(s[2])
  .. ',"limits":' .. json(s[3])
  .. ',"units":' .. json(s[9])
  .. ',"version":' .. json(s[4])
  .. ',"members":{' .. table.concat(members, ',') .. '}'
  .. ',"window":' .. json(s[6])
  .. ',"stamp":' .. json(s[10])
  .. ',"now":' .. json(s[8])
  .. ',"time":' .. json(tonumber(time[1]) * 1000000 + tonumber(time[2])) .. '}'
