-- Exact integers. Numbers here are doubles: a number that a double cannot hold exactly is an error, and then
-- nothing has changed.

local EXACT = 9007199254740992

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local function exact(number)
  if number > -EXACT and number < EXACT then
    return number
  end
  error('headgate: a number that is too large')
end

-- a * b / n rounded down, and the remainder; the product itself may be larger than a double can hold.
local function divided(a, b, n)
  if not (n > 0) then
    error('headgate: a rate of nothing')
  end
  if a * b < EXACT then
    return floor(a * b / n), a * b % n
  end
  exact(a)
  exact(b)
  -- By long division, digit by digit of b. The whole multiples of n in a need none.
  local base = 32768
  while n * base * 2 > EXACT do
    base = base / 2
  end
  if base < 2 then
    error('headgate: a number that is too large')
  end
  local whole, rest = floor(a / n) * b, a % n
  local digits = {}
  while b > 0 do
    digits[#digits + 1] = b % base
    b = floor(b / base)
  end
  local quotient, left = 0, 0
  for i = #digits, 1, -1 do
    local part = left * base + rest * digits[i]
    quotient = quotient * base + floor(part / n)
    left = part % n
  end
  return exact(whole + quotient), left
end

local function rounded_up(a, b, n)
  local quotient, left = divided(a, b, n)
  return left > 0 and quotient + 1 or quotient
end

