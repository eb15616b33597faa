/** A problem: its text, the calculation of each step as `12+5=17`, and the last result. */
interface Story {
  readonly question: string;
  readonly calculations: readonly string[];
  readonly answer: number;
}

const people = ['Ana', 'Ben', 'Carla', 'Dan', 'Elif', 'Farid', 'Grace', 'Hugo', 'Ines', 'Jun', 'Kofi', 'Lena'];
const things = ['apples', 'books', 'cards', 'coins', 'eggs', 'marbles', 'pens', 'shells', 'stamps', 'toys'];

/**
 * Someone has some things, then `steps` events change their number. Intermediate results are whole and never negative;
 * each sentence has one number.
 */
export function stories(options: { steps: number; maxNumber: number; random: () => number }): Story {
  const { steps, maxNumber, random } = options;
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!;
  const upTo = (max: number) => 2 + Math.floor(random() * (max - 1));
  const [who, what] = [pick(people), pick(things)];
  let count = upTo(maxNumber);
  const sentences = [`${who} has ${count} ${what}.`];
  const calculations: string[] = [];
  for (let step = 0; step < steps; step++) {
    const possible = events.filter((event) => event.isPossible(count, maxNumber));
    const event = pick(possible);
    const n = event.choose({ count, upTo, maxNumber });
    sentences.push(event.tell(who, n, what));
    const [written, result] = event.calculate(count, n);
    calculations.push(`${written}=${result}`);
    count = result;
  }
  return { question: `${sentences.join(' ')} How many ${what} does ${who} have now?`, calculations, answer: count };
}

interface Event {
  isPossible(count: number, maxNumber: number): boolean;
  /** From 2 on. */
  choose(now: { count: number; upTo: (max: number) => number; maxNumber: number }): number;
  tell(who: string, n: number, what: string): string;
  /** The calculation as written, and its result. */
  calculate(count: number, n: number): readonly [string, number];
}

const more: Pick<Event, 'isPossible' | 'choose' | 'calculate'> = {
  isPossible: () => true,
  choose: ({ upTo, maxNumber }) => upTo(maxNumber),
  calculate: (count, n) => [`${count}+${n}`, count + n],
};
const fewer: typeof more = {
  isPossible: (count) => count >= 2,
  choose: ({ count, upTo, maxNumber }) => upTo(Math.min(count, maxNumber)),
  calculate: (count, n) => [`${count}-${n}`, count - n],
};
const multiple: typeof more = {
  isPossible: (count, maxNumber) => count >= 1 && count <= 2 * maxNumber,
  choose: ({ upTo }) => upTo(4),
  calculate: (count, n) => [`${count}*${n}`, count * n],
};
const part: typeof more = {
  isPossible: (count) => [2, 3, 4, 5].some((n) => count >= n && count % n === 0),
  choose({ count, upTo }) {
    const divisors = [2, 3, 4, 5].filter((n) => count >= n && count % n === 0);
    return divisors[upTo(divisors.length + 1) - 2]!;
  },
  calculate: (count, n) => [`${count}/${n}`, count / n],
};

const events: readonly Event[] = [
  { ...more, tell: (who, n, what) => `${who} buys ${n} more ${what}.` },
  { ...more, tell: (who, n) => `A friend gives ${who} ${n}.` },
  { ...more, tell: (who, n) => `${who} finds ${n} in a box.` },
  { ...fewer, tell: (who, n) => `${who} gives away ${n}.` },
  { ...fewer, tell: (who, n, what) => `${who} loses ${n} ${what}.` },
  { ...fewer, tell: (who, n) => `${who} sells ${n}.` },
  { ...multiple, tell: (who, n, what) => `Then ${who} has ${n} times as many ${what}.` },
  { ...part, tell: (who, n) => `${who} shares all equally among ${n}, keeping one share.` },
];
