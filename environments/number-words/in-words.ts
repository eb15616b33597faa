const small =
  'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen'.split(
    ' ',
  );
const tens = 'twenty thirty forty fifty sixty seventy eighty ninety'.split(' ');

/** A whole number from 0 to 999 as people write it: `forty-two`, `one hundred and seven`. */
export function inWords(n: number): string {
  if (n < 20) return small[n]!;
  if (n < 100) return `${tens[Math.floor(n / 10) - 2]}${n % 10 === 0 ? '' : `-${small[n % 10]}`}`;
  const rest = n % 100;
  return `${small[Math.floor(n / 100)]} hundred${rest === 0 ? '' : ` and ${inWords(rest)}`}`;
}
