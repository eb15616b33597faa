import { z } from 'zod';
import {
  type DatasetRow,
  hash32,
  lastNumber,
  listDataset,
  parseArgs,
  randomStream,
  rubric,
  singleTurn,
} from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';

/**
 * Sums, differences and products: the user message is the problem (`12+34=`), the correct answer a whole number.
 * Operands have 1 to `digits` digits; differences are ordered so that no answer is negative.
 */

const operations = { '+': (a: number, b: number) => a + b, '-': (a: number, b: number) => a - b, '*': times };

const Args = z.strictObject({
  operations: z
    .array(z.enum(['+', '-', '*']))
    .min(1)
    .default(['+', '-']),
  /** Digits of an operand at most. */
  digits: z.int().min(1).max(6).default(2),
  num_train_examples: z.int().min(1).max(1_000_000).default(20_000),
  num_eval_examples: z.int().min(1).max(100_000).default(1_000),
  /** Share of the demonstrations that are wrong, so that the warm-up leaves something to learn. */
  wrong_demonstrations: z.number().min(0).max(1).default(0.3),
  /** Decides the problems, and the held-out tenth. */
  seed: z.int().min(0).default(0),
});

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('arithmetic', Args, args);
  const isHeldOut = (problem: string) => hash32(options.seed, 'held out', problem) % 10 === 0;
  return singleTurn({
    name: 'arithmetic',
    dataset: listDataset(() => drawProblems(options, options.num_train_examples, (problem) => !isHeldOut(problem))),
    evalDataset: listDataset(() => drawProblems(options, options.num_eval_examples, isHeldOut)),
    rubric: rubric([
      {
        name: 'exact_match',
        weight: 0.8,
        score: ({ completion, example }) => Number(lastNumber(completion) === Number(example.answer)),
      },
      {
        name: 'digits_right',
        weight: 0.2,
        score: ({ completion, example }) => digitsRight(String(lastNumber(completion) ?? ''), example.answer),
      },
    ]),
    demonstrate: ({ answer }, random) => (random() < options.wrong_demonstrations ? spoil(answer, random) : answer),
  });
}

/** Distinct problems, as many as requested or as exist (almost all, in a small range). */
function drawProblems(
  options: z.infer<typeof Args>,
  count: number,
  isWanted: (problem: string) => boolean,
): DatasetRow[] {
  const random = randomStream(options.seed, 'arithmetic');
  const pick = (n: number) => Math.floor(random() * n);
  const rows = new Map<string, DatasetRow>();
  // Stops after so many draws without a new row: hardly any are left.
  for (let rejected = 0; rows.size < count && rejected < drawsMax; rejected++) {
    const operation = options.operations[pick(options.operations.length)]!;
    const [a, b] = [operand(1 + pick(options.digits), random), operand(1 + pick(options.digits), random)];
    const [first, second] = operation === '-' && a < b ? [b, a] : [a, b];
    const prompt = `${first}${operation}${second}=`;
    if (rows.has(prompt) || !isWanted(prompt)) continue;
    rows.set(prompt, { prompt, answer: String(operations[operation](first, second)) });
    rejected = 0;
  }
  return [...rows.values()];
}

const drawsMax = 2_000;

/** A number with this many digits; of one digit also 0. */
function operand(digits: number, random: () => number): number {
  const least = digits === 1 ? 0 : 10 ** (digits - 1);
  return least + Math.floor(random() * (10 ** digits - least));
}

function times(a: number, b: number): number {
  return a * b;
}

/** Share of correct digits, counted from the ones; missing and extra digits count as wrong. */
function digitsRight(said: string, answer: string): number {
  const right = Array.from(answer).filter((digit, i) => digit === said[said.length - answer.length + i]).length;
  return right / Math.max(said.length, answer.length);
}

/** A wrong demonstration: one digit differs. */
function spoil(answer: string, random: () => number): string {
  const at = Math.floor(random() * answer.length);
  const digit = (Number(answer[at]) + 1 + Math.floor(random() * 9)) % 10;
  return answer.slice(0, at) + String(digit) + answer.slice(at + 1);
}
