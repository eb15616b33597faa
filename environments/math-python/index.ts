import { z } from 'zod';
import { lazily } from '../../core/lazily.ts';
import {
  answeredCallsOf,
  boxed,
  callText,
  hadNoEffect,
  hash32,
  listDataset,
  openPython,
  parseArgs,
  randomStream,
  rubric,
  tool,
  toolCallsOf,
  toolEnvironment,
  withoutThinking,
} from '../../backends/environments/kit.ts';
import type { AnsweredCall, Environment, RewardInput } from '../../backends/environments/kit.ts';
import { exactNumber } from './exact-number.ts';
import { difficulties, makeProblem, type Problem } from './problems.ts';

/**
 * Mathematics with a Python tool: the model writes code, gets its output, and answers in \boxed{}. Definitions last for
 * the rollout. The code runs in a sandbox, see `sandbox`.
 */

const Args = z.strictObject({
  max_turns: z.int().min(1).max(100).default(10).describe('turns of the model at most, the answer included'),
  difficulty: z.enum([...difficulties, 'mixed']).default('mixed'),
  num_train_examples: z.int().min(1).max(100_000).default(2_000),
  num_eval_examples: z.int().min(1).max(10_000).default(200),
  system_prompt: z.string().nullable().default(null).describe('null = instructions of ours, "" = none'),
  sandbox: z
    .enum(['namespaces', 'none'])
    .default('namespaces')
    .describe('"none" runs the model\'s code with the rights of the worker, limits of time and memory alone'),
  timeout_s: z.number().min(0.1).max(300).default(5).describe('of one call'),
  memory_mb: z.int().min(64).max(65_536).default(512),
  output_chars: z.int().min(100).max(100_000).default(2_000).describe('of a call that the model is told'),
  python: z.string().min(1).default('python3').describe('the interpreter; what is installed there can be imported'),
  seed: z.int().min(0).default(0).describe('chooses the problems, and which are held out'),
});
type Args = z.infer<typeof Args>;

const instructions =
  'Solve the problem. Use the python tool for every computation; variables last from call to call. When you are sure, give the answer, ' +
  String.raw`a whole number or a fraction in lowest terms, in \boxed{}.`;

export async function loadEnvironment(args: unknown): Promise<Environment> {
  const options = parseArgs('math-python', Args, args);
  const python = await openPython({
    sandbox: options.sandbox,
    timeoutS: options.timeout_s,
    memoryMb: options.memory_mb,
    outputCharsMax: options.output_chars,
    python: options.python,
  });
  const problems = lazily(() => makeProblems(options));
  const system = options.system_prompt ?? instructions;
  const dataset = (chosen: () => readonly Problem[]) =>
    listDataset(() =>
      chosen().map(({ question, answer, code }) => ({
        prompt: [...(system === '' ? [] : [{ role: 'system' as const, content: system }]), user(question)],
        answer,
        info: { code },
      })),
    );

  const environment = toolEnvironment({
    name: 'math-python',
    dataset: dataset(() => problems().train),
    evalDataset: dataset(() => problems().heldOut),
    maxTurns: options.max_turns,
    tools: [
      tool({
        name: 'python',
        description:
          'Runs Python and gives what it printed, and the value of an expression that stands last. Variables and imports last from call to call. No network, no files of yours, no subprocesses.',
        parameters: z.strictObject({ code: z.string().describe('the Python to run') }),
        run: ({ code }, { earlier }) => python.run([...cellsOf(earlier), code]),
      }),
    ],
    rubric: rubric([
      { name: 'correct', weight: 1, score: (rollout) => Number(isCorrect(rollout)) },
      { name: 'boxed', weight: 0, score: ({ completion }) => Number(boxed(withoutThinking(completion)) !== undefined) },
      { name: 'turns', weight: 0, score: ({ turns }) => turns.length },
      { name: 'python_calls', weight: 0, score: ({ turns }) => toolCallsOf(turns).length },
      { name: 'python_errors', weight: 0, score: ({ turns }) => answeredCallsOf(turns).filter(isError).length },
    ]),
    demonstrate: ({ example, messages }) => {
      const last = messages.at(-1)!;
      if (last.role === 'tool') return String.raw`\boxed{${last.content.replaceAll("'", '')}}`;
      return callText('python', { code: String(example.info!['code']) });
    },
  });
  if (options.sandbox === 'namespaces') return environment;
  return { ...environment, warnings: [withoutSandbox] };
}

const withoutSandbox =
  'math-python has sandbox = "none": Python that the model writes runs with the rights of the worker. It can read its files, reach the network and start processes. Use this only where nothing on the machine is worth protecting.';

const user = (content: string) => ({ role: 'user' as const, content });

/** Code of earlier calls that had an effect. */
function cellsOf(earlier: readonly AnsweredCall[]): string[] {
  return earlier
    .filter(({ call, answer }) => call.name === 'python' && !hadNoEffect(answer))
    .flatMap(({ call }) => {
      const parsed = Call.safeParse(call.arguments);
      return parsed.success ? [parsed.data.code] : []; // an invalid call, which was answered with an error
    });
}

const Call = z
  .string()
  .transform((text, context): unknown => {
    try {
      return JSON.parse(text);
    } catch {
      context.addIssue('no JSON');
      return z.NEVER;
    }
  })
  .pipe(z.object({ code: z.string() }));

function isError({ answer }: AnsweredCall): boolean {
  return answer.startsWith('Traceback') || answer.includes('\nTraceback') || answer.includes('Error: ');
}

function isCorrect({ completion, example }: RewardInput): boolean {
  const said = boxed(withoutThinking(completion));
  return said !== undefined && exactNumber(said) === example.answer;
}

/** Distinct problems; held-out ones are chosen by their text, so that the split does not depend on their number. */
function makeProblems(options: Args): { train: Problem[]; heldOut: Problem[] } {
  const { difficulty, seed, num_train_examples, num_eval_examples } = options;
  const random = randomStream('math-python', seed, difficulty);
  const train = new Map<string, Problem>();
  const heldOut = new Map<string, Problem>();
  while (train.size < num_train_examples || heldOut.size < num_eval_examples) {
    const level = difficulty === 'mixed' ? difficulties[Math.floor(random() * difficulties.length)]! : difficulty;
    const problem = makeProblem(level, random);
    const isHeldOut = hash32(seed, 'held out', problem.question) % 10 === 0;
    const [target, max] = isHeldOut ? [heldOut, num_eval_examples] : [train, num_train_examples];
    if (target.size < max) target.set(problem.question, problem);
  }
  return { train: [...train.values()], heldOut: [...heldOut.values()] };
}
