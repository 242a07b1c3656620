-- A pool as it is stored: lists without names, in the order of `packed` in pool/state.py and pool/rate.py.

-- A rate.
local AMOUNT, PERIOD, BURST, FULL_AT, FULL_STAMP, STAMPS, LOWS = 1, 2, 3, 4, 5, 6, 7
-- A member.
local EXPIRES, LAST_START, HOLDS, WANTS, PUT_OFF, NEXT_BYTES, TURN, IN_FLIGHT, WAITING = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ANSWERED, ANSWER = 10, 11
-- What a member holds, uses and wants.
local PLACES, BYTES = 1, 2
-- The window. Where there is no time, there is false.
local UNTIL, GENERATION, RESUMED = 1, 2, 3
-- The limits.
local PLACES_LIMIT, THROTTLED_PLACES, BYTES_LIMIT, THROTTLED_FOR = 1, 2, 3, 4

-- The pool, or nil if the text is not one of this layout.
local function unpacked(text, layout)
  local whole, s = pcall(cmsgpack.unpack, text)
  if not whole or type(s) ~= 'table' or s[1] ~= layout then
    return nil
  end
  return {
    rates = s[2], limits = s[3], units = s[4], version = s[5], members = s[6], window = s[7], stamp = s[8], now = s[9],
    ahead = s[10],
  }
end

local function packed(p, layout)
  return cmsgpack.pack({layout, p.rates, p.limits, p.units, p.version, p.members, p.window, p.stamp, p.now, p.ahead})
end

local function microseconds(time)
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

