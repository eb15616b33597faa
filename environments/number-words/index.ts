import { z } from 'zod';
import {
  type DatasetRow,
  hash32,
  listDataset,
  parseArgs,
  randomStream,
  rubric,
  singleTurn,
  withoutThinking,
} from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';
import { inWords } from './in-words.ts';

/**
 * Arithmetic in words, for a small chat model: `forty-two or seventeen` asks for the larger number, `seven plus twelve`
 * for the sum. The system message names the task, one answered question shows the format, and only the answer in words
 * counts.
 */

interface Kind {
  readonly task: string;
  ask(a: string, b: string): string;
  answer(a: number, b: number): number;
}

const kinds = {
  larger: { task: 'Which is larger?', ask: (a, b) => `${a} or ${b}`, answer: Math.max },
  smaller: { task: 'Which is smaller?', ask: (a, b) => `${a} or ${b}`, answer: Math.min },
  plus: { task: 'Add.', ask: (a, b) => `${a} plus ${b}`, answer: (a, b) => a + b },
  /** The larger number comes first. */
  minus: { task: 'Subtract.', ask: (a, b) => `${a} minus ${b}`, answer: (a, b) => a - b },
} as const satisfies Record<string, Kind>;
type KindName = keyof typeof kinds;

const Args = z.strictObject({
  kinds: z
    .array(z.enum(['larger', 'smaller', 'plus', 'minus']))
    .min(1)
    .default(['larger']),
  /** Largest number in a question; a sum may be larger. */
  largest: z.int().min(9).max(499).default(99),
  /** Answered questions of the same kind before the actual one. */
  shown: z.int().min(0).max(4).default(1),
  num_train_examples: z.int().min(1).max(1_000_000).default(5_000),
  num_eval_examples: z.int().min(1).max(100_000).default(500),
  /** Share of the demonstrations with a wrong number. */
  wrong_demonstrations: z.number().min(0).max(1).default(0.3),
  /** Decides the questions, and the held-out tenth of pairs of numbers. */
  seed: z.int().min(0).default(0),
});
type Args = z.infer<typeof Args>;

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('number-words', Args, args);
  // Split by the unordered pair: a model trained on "four or nine" knows "nine or four".
  const isHeldOut = (a: number, b: number) =>
    hash32(options.seed, 'held out', Math.min(a, b), Math.max(a, b)) % 10 === 0;
  return singleTurn({
    name: 'number-words',
    dataset: listDataset(() => drawQuestions(options, options.num_train_examples, (a, b) => !isHeldOut(a, b))),
    evalDataset: listDataset(() => drawQuestions(options, options.num_eval_examples, isHeldOut)),
    rubric: rubric([
      {
        name: 'exact_match',
        weight: 1,
        score: ({ completion, example }) => Number(plain(completion) === plain(example.answer)),
      },
      {
        name: 'is_number',
        weight: 0,
        score: ({ completion }) => Number(numbers.has(plain(completion))),
      },
    ]),
    demonstrate({ answer }, random) {
      if (random() >= options.wrong_demonstrations) return answer;
      return inWords((numbers.get(plain(answer))! + 1 + Math.floor(random() * options.largest)) % (numbersMax + 1));
    },
  });
}

/** Longer than any number's name with blanks; longer answers are wrong. */
const answerLengthMax = 80;
/** Twice the largest allowed number. */
const numbersMax = 998;
const numbers = new Map(Array.from({ length: numbersMax + 1 }, (_, n) => [plain(inWords(n)), n]));

/** Normal form for comparison: without reasoning, capitals, hyphens and the full stop. */
function plain(text: string): string {
  const said = withoutThinking(text);
  if (said.length > answerLengthMax) return '';
  return said.toLowerCase().replaceAll('-', ' ').replace(/\.$/, '').replace(/\s+/g, ' ').trim();
}

/** Distinct questions, as many as requested or as exist (almost all, in a small range). */
function drawQuestions(options: Args, count: number, isWanted: (a: number, b: number) => boolean): DatasetRow[] {
  const random = randomStream(options.seed, 'number-words');
  const draw = () => 1 + Math.floor(random() * options.largest);
  const rows = new Map<string, DatasetRow>();
  // Stops after so many draws without a new row: hardly any are left.
  for (let rejected = 0; rows.size < count && rejected < drawsMax; rejected++) {
    const name = options.kinds[Math.floor(random() * options.kinds.length)]!;
    const [a, b] = inOrder(name, draw(), draw());
    const key = `${name} ${a} ${b}`;
    if (a === b || rows.has(key) || !isWanted(a, b)) continue;
    const kind: Kind = kinds[name];
    const answer = inWords(kind.answer(a, b));
    rows.set(key, {
      prompt: [
        { role: 'system', content: kind.task },
        ...examplesShown(name, options.shown),
        { role: 'user', content: kind.ask(inWords(a), inWords(b)) },
      ],
      answer,
      info: { kind: name },
    });
    rejected = 0;
  }
  return [...rows.values()];
}

const drawsMax = 2_000;

function inOrder(name: KindName, a: number, b: number): [number, number] {
  return name === 'minus' && a < b ? [b, a] : [a, b];
}

/** The same for every question of a kind, so that prompts begin alike. */
function examplesShown(name: KindName, count: number) {
  const kind: Kind = kinds[name];
  return shownPairs.slice(0, count).flatMap((pair) => {
    const [a, b] = inOrder(name, ...pair);
    return [
      { role: 'user' as const, content: kind.ask(inWords(a), inWords(b)) },
      { role: 'assistant' as const, content: inWords(kind.answer(a, b)) },
    ];
  });
}

const shownPairs: readonly (readonly [number, number])[] = [
  [4, 9],
  [8, 3],
  [2, 6],
  [7, 5],
];
