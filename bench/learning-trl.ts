import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { RunSpec } from '../config/run-spec.ts';
import { openEnvironment } from '../backends/environments/index.ts';
import { playAndScore, scriptedPolicy } from '../backends/environments/scripted.ts';
import type { Environment } from '../backends/environments/types.ts';
import type { Bench } from './measurement.ts';
import { PeerProcess } from './peer-process.ts';

const peer = fileURLToPath(new URL('peers/trl_smollm2.py', import.meta.url));

/** A held-out evaluation of TRL's run; times from the start of its process on, in seconds. */
const Evaluation = z.object({ step: z.int(), reward: z.number(), wall_s: z.number(), cpu_s: z.number() });
export type TrlEvaluation = z.infer<typeof Evaluation>;

/** Messages of the peer: texts to be scored, or its progress. */
const Said = z.union([
  z.object({ score: z.array(z.object({ example: z.int(), isHeldOut: z.boolean(), text: z.string() })) }),
  z.object({ evaluation: Evaluation }),
  z.object({ done: z.record(z.string(), z.unknown()) }),
]);

export interface TrlRun {
  readonly evaluations: readonly TrlEvaluation[];
  readonly details: Readonly<Record<string, unknown>>;
}

/**
 * The run of a run file by TRL's GRPOTrainer with PEFT: the same weights, examples, sizes, rates and limits, and rewards by our environment, which the
 * peer asks for line by line. Environments of one turn alone.
 */
export async function learnWithTrl(
  bench: Bench,
  options: { readonly spec: RunSpec; readonly model: string; readonly python: string; readonly threads: number },
): Promise<TrlRun> {
  const { spec, model, python, threads } = options;
  const environment = await openEnvironment(spec.environments[0]!);
  const env = { ...process.env, OMP_NUM_THREADS: String(threads), OMP_WAIT_POLICY: 'passive' };
  const theirs = new PeerProcess(bench, python, [peer], env);
  const evaluations: TrlEvaluation[] = [];
  try {
    let said = Said.parse(await theirs.ask(taskFor(environment, { spec, model, threads })));
    for (;;) {
      if ('done' in said) return { evaluations, details: said.done };
      if ('evaluation' in said) {
        evaluations.push(said.evaluation);
        bench.say(`TRL: ${JSON.stringify(said.evaluation)}`);
        said = Said.parse(await theirs.hear());
      } else {
        const rewards = await Promise.all(
          said.score.map(async ({ example, isHeldOut, text }) => {
            const dataset = isHeldOut ? environment.evalDataset : environment.dataset;
            const policy = scriptedPolicy(() => text);
            const name = isHeldOut ? 'evalDataset' : 'dataset';
            return (await playAndScore(environment, dataset.at(example), policy, name)).reward ?? 0;
          }),
        );
        said = Said.parse(await theirs.ask({ rewards }));
      }
    }
  } finally {
    await theirs.close();
  }
}

/** All that the peer has to know: our settings by their own names. */
function taskFor(
  environment: Environment,
  { spec, model, threads }: { readonly spec: RunSpec; readonly model: string; readonly threads: number },
): Record<string, unknown> {
  const groups = spec.batchSize / spec.rolloutsPerExample;
  const promptsOf = (dataset: Environment['dataset'], count: number) =>
    Array.from({ length: Math.min(count, dataset.length) }, (_, i) => dataset.at(i).prompt);
  const { beta2 } = spec.optimizer as { beta2?: number };
  const { clipHigh } = spec.loss as { clipHigh?: number };
  return {
    model,
    threads,
    seed: spec.seed,
    train: promptsOf(environment.dataset, groups * spec.maxSteps),
    heldOut: promptsOf(environment.evalDataset, spec.eval!.environments[0]!.numExamples),
    steps: spec.maxSteps,
    evalEvery: spec.eval!.interval,
    batchSize: spec.batchSize,
    groupSize: spec.rolloutsPerExample,
    maxTokens: spec.sampling.maxTokens,
    temperature: spec.sampling.temperature,
    learningRate: spec.learningRate,
    warmupSteps: spec.schedule.warmupSteps,
    beta2,
    clipHigh,
    lora: spec.lora,
  };
}
