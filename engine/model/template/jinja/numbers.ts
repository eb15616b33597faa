/** A float as Python's repr() writes it. */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.0';
  const [digits, exponentText] = Math.abs(value).toExponential().split('e') as [string, string];
  const exponent = Number(exponentText);
  const sign = value < 0 ? '-' : '';
  if (exponent < -4 || exponent >= 16) return `${sign}${digits}e${exponentOf(exponent)}`;
  const text = fixedByDigits(digits.replace('.', ''), exponent);
  return `${sign}${text.includes('.') ? text : `${text}.0`}`;
}

function exponentOf(exponent: number): string {
  return `${exponent < 0 ? '-' : '+'}${String(Math.abs(exponent)).padStart(2, '0')}`;
}

function fixedByDigits(digits: string, exponent: number): string {
  if (exponent < 0) return `0.${'0'.repeat(-exponent - 1)}${digits}`;
  if (digits.length <= exponent + 1) return digits.padEnd(exponent + 1, '0');
  return `${digits.slice(0, exponent + 1)}.${digits.slice(exponent + 1)}`;
}

/**
 * A finite float with a number of decimals, exact and half to even like Python; JavaScript's toFixed rounds half up.
 */
export function fixed(value: number, places: number): string {
  const isNegative = value < 0 || Object.is(value, -0);
  const [mantissa, power] = partsOf(Math.abs(value));
  const scaled = mantissa * 10n ** BigInt(Math.max(0, places));
  let units = power >= 0 ? scaled << BigInt(power) : halfToEven(scaled, 1n << BigInt(-power));
  if (places < 0) units = halfToEven(units, 10n ** BigInt(-places)) * 10n ** BigInt(-places);
  const text = units.toString().padStart(Math.max(0, places) + 1, '0');
  const whole = places > 0 ? `${text.slice(0, -places)}.${text.slice(-places)}` : text;
  return isNegative ? `-${whole}` : whole;
}

function halfToEven(dividend: bigint, divisor: bigint): bigint {
  const quotient = dividend / divisor;
  const twice = (dividend % divisor) * 2n;
  return twice > divisor || (twice === divisor && quotient % 2n === 1n) ? quotient + 1n : quotient;
}

/** A float as a whole number times a power of two. */
function partsOf(value: number): readonly [bigint, number] {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  const bits = view.getBigUint64(0);
  const exponent = Number((bits >> 52n) & 0x7ffn);
  const fraction = bits & 0xf_ffff_ffff_ffffn;
  return exponent === 0 ? [fraction, -1074] : [fraction | (1n << 52n), exponent - 1075];
}

/** `%e` of C: one digit before the point. */
export function scientific(value: number, places: number): string {
  const [digits, exponent] = value.toExponential(places).split('e') as [string, string];
  return `${digits}e${exponentOf(Number(exponent))}`;
}

/** C's `%g`: significant digits, without trailing zeros. */
export function general(value: number, precision: number): string {
  const digits = Math.max(1, precision);
  const [, exponentText] = value.toExponential(digits - 1).split('e') as [string, string];
  const exponent = Number(exponentText);
  const withoutZeros = (text: string): string => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);
  if (exponent >= -4 && exponent < digits) return withoutZeros(fixed(value, digits - 1 - exponent));
  const [mantissa, power] = scientific(value, digits - 1).split('e') as [string, string];
  return `${withoutZeros(mantissa)}e${power}`;
}
