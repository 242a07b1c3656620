-- A pool as it is stored: lists without names, in the order of `packed` in pool/state.py, rate.py and strict.py.

-- A rate.
local AMOUNT, PERIOD, BURST, KIND, FULL_AT, FULL_STAMP, STAMPS, LOWS = 1, 2, 3, 4, 5, 6, 7, 8
local RAISED, HEARD_AT, FACTS_AT, MOMENTS, TAKEN, DOUBTS, UNUSED, HELD, GAP = 9, 10, 11, 12, 13, 14, 15, 16, 17
-- A strict rate has other values after its kind.
local GONE, FIRSTS, LASTS, LAST_STAMPS, UNITS, CAPPED_UNTIL, CAP = 5, 6, 7, 8, 9, 11, 12
-- A member.
local EXPIRES, LAST_START, SERVED, SHORT_UNTIL, REACH, BACK, HOLDS, WANTS = 1, 2, 3, 4, 5, 6, 7, 8
local FLOWS, LUMP, OWN_GAP, CONTENT, PUT_OFF, NEXT_BYTES, TURN, CROWDED = 9, 10, 11, 12, 13, 14, 15, 16
local IN_FLIGHT, WAITING, ANSWERED, ANSWER = 17, 18, 19, 20
-- What a member holds, uses and wants.
local PLACES, BYTES = 1, 2
-- The window. Where there is no time, there is false.
local UNTIL, GENERATION, RESUMED, GENTLE, PROBING, PROBER = 1, 2, 3, 4, 5, 6
-- What was learned.
local VERSION, EPISODE, TOLD_AT, TEXT, SUCCESSES = 1, 2, 3, 4, 5
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
    ahead = s[10], called = s[11], lesson = s[12], configured = s[13], raised = s[14], born = s[15],
    grants_from = s[16], present = s[17], parts = s[18], parts_until = s[19], beside = s[20],
    granted_until = s[21], apart = s[22], prepaid = s[23], reunion_from = s[24], reunion_until = s[25],
    asked_from = s[26], asked_until = s[27],
  }
end

local function packed(p, layout)
  return cmsgpack.pack({
    layout, p.rates, p.limits, p.units, p.version, p.members, p.window, p.stamp, p.now, p.ahead, p.called,
    p.lesson, p.configured, p.raised, p.born, p.grants_from, p.present, p.parts, p.parts_until,
    p.beside, p.granted_until, p.apart, p.prepaid, p.reunion_from, p.reunion_until, p.asked_from, p.asked_until,
  })
end

local function microseconds(time)
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

