/** Numbers as fractions in lowest terms, so that two spellings of one number are equal and two numbers never are. */

/**
 * `p/q`, or `p` for a whole number, from a model's text: 1,024 · -3/4 · 0.75 · \frac{3}{4} · $x = 5$. undefined for
 * anything else.
 */
export function exactNumber(written: string): string | undefined {
  if (written.length > writtenCharsMax) return undefined;
  const plain = written
    .replaceAll(/\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}/g, '$1/$2')
    .replaceAll(/\\(?:left|right|[,!;: ])|\$|\s|\\text\{[^{}]*\}/g, '')
    .replace(/^[A-Za-z]\w*(?:\([^()]*\))?=/, '')
    .replace(/\.$/, '');
  const match = /^([+-]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?(?:\/(\d+))?$/.exec(plain);
  if (!match) return undefined;
  const [, sign, whole = '', decimals = '', below = '1'] = match;
  const top = BigInt(whole.replaceAll(',', '') + decimals) * (sign === '-' ? -1n : 1n);
  const bottom = BigInt(below) * 10n ** BigInt(decimals.length);
  if (bottom === 0n) return undefined;
  const divisor = gcd(top < 0n ? -top : top, bottom);
  return bottom === divisor ? String(top / divisor) : `${top / divisor}/${bottom / divisor}`;
}

/** Longer texts are never an answer, and reducing fractions of a million digits takes minutes. */
const writtenCharsMax = 1_000;

function gcd(a: bigint, b: bigint): bigint {
  return b === 0n ? a : gcd(b, a % b);
}
