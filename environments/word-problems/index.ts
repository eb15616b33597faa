import { z } from 'zod';
import {
  type DatasetRow,
  hash32,
  lastNumber,
  listDataset,
  numberAfterHashes,
  parseArgs,
  randomStream,
  rubric,
  singleTurn,
} from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';
import { stories } from './stories.ts';

/**
 * Short stories with numbers that ask for a number, like gsm8k: the solution goes step by step and ends with `#### 42`.
 * Stories and numbers are drawn from a seed; the example's answer is only the number, `info.solution` the whole
 * solution.
 */

const Args = z
  .strictObject({
    /** Steps of the calculation. */
    min_steps: z.int().min(1).max(3).default(1),
    max_steps: z.int().min(1).max(3).default(3),
    /** The largest number a story begins with. */
    max_number: z.int().min(4).max(1_000).default(20),
    /** System message before every problem; empty = none. */
    system_prompt: z
      .string()
      .default('Solve the problem step by step. End with a line that has #### and the answer as a number.'),
    num_train_examples: z.int().min(1).max(1_000_000).default(7_500),
    num_eval_examples: z.int().min(1).max(100_000).default(1_300),
    /** Share of the demonstrations with a wrong last step. */
    wrong_demonstrations: z.number().min(0).max(1).default(0.5),
    /** Decides the problems, and the held-out tenth. */
    seed: z.int().min(0).default(0),
  })
  .refine(({ min_steps, max_steps }) => min_steps <= max_steps, {
    path: ['min_steps'],
    error: 'expected at most max_steps',
  });

export function loadEnvironment(args: unknown): Environment {
  const options = parseArgs('word-problems', Args, args);
  const isHeldOut = (question: string) => hash32(options.seed, 'held out', question) % 10 === 0;
  return singleTurn({
    name: 'word-problems',
    dataset: listDataset(() => drawProblems(options, options.num_train_examples, (question) => !isHeldOut(question))),
    evalDataset: listDataset(() => drawProblems(options, options.num_eval_examples, isHeldOut)),
    rubric: rubric([
      {
        name: 'exact_match',
        weight: 1,
        score: ({ completion, example }) => Number(answerIn(completion) === Number(example.answer)),
      },
      {
        name: 'has_answer_line',
        weight: 0,
        score: ({ completion }) => Number(numberAfterHashes(completion) !== undefined),
      },
    ]),
    demonstrate({ answer, info }, random) {
      const solution = Solution.parse(info).solution;
      if (random() >= options.wrong_demonstrations) return solution;
      const wrong = String(Number(answer) + 1 + Math.floor(random() * 9));
      // The last step's result, and with it the answer.
      return solution.replace(new RegExp(`=${answer}\\n#### ${answer}$`), `=${wrong}\n#### ${wrong}`);
    },
  });
}

const Solution = z.object({ solution: z.string() });

/** The number after `####`; without that, the last number in the text. */
function answerIn(completion: string): number | undefined {
  return numberAfterHashes(completion) ?? lastNumber(completion);
}

/** Distinct problems, as many as requested or as exist (almost all, in a small range). */
function drawProblems(
  options: z.infer<typeof Args>,
  count: number,
  isWanted: (question: string) => boolean,
): DatasetRow[] {
  const random = randomStream(options.seed, 'word-problems');
  const { min_steps, max_steps, max_number, system_prompt } = options;
  const system = system_prompt === '' ? [] : [{ role: 'system' as const, content: system_prompt }];
  const rows = new Map<string, DatasetRow>();
  // Stops after so many draws without a new row: hardly any are left.
  for (let rejected = 0; rows.size < count && rejected < drawsMax; rejected++) {
    const steps = min_steps + Math.floor(random() * (max_steps - min_steps + 1));
    const { question, calculations, answer } = stories({ steps, maxNumber: max_number, random });
    if (rows.has(question) || !isWanted(question)) continue;
    const solution = `${calculations.join('\n')}\n#### ${answer}`;
    rows.set(question, {
      prompt: [...system, { role: 'user', content: question }],
      answer: String(answer),
      info: { solution },
    });
    rejected = 0;
  }
  return [...rows.values()];
}

const drawsMax = 2_000;
