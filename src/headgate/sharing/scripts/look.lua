-- One look at one pool. Changes nothing. Comes after state.lua.
--
-- KEYS[1]  the pool                                             ARGV[1]  the number of the layout
-- reply    the values of `Pool.packed`, with the members as pairs of a name and values, without answers; then the
--          server's time in microseconds. Nothing if there is no such pool.

local text = redis.pcall('GET', KEYS[1])
local pool = type(text) == 'string' and unpacked(text, tonumber(ARGV[1]))
if not pool then
  return false
end

local members = {}
for name, member in pairs(pool.members) do
  member[ANSWERED], member[ANSWER] = 0, false
  members[#members + 1] = {name, member}
end
return {
  tonumber(ARGV[1]), pool.rates, pool.limits, pool.units, pool.version, members, pool.window, pool.stamp, pool.now,
  pool.ahead, pool.called, pool.lesson, pool.configured, pool.raised, pool.born, pool.grants_from,
  microseconds(redis.call('TIME')),
}
