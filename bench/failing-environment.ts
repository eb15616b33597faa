import { listDataset, parseArgs, rubric, singleTurn, uniform, z } from '../backends/environments/kit.ts';
import type { Environment } from '../backends/environments/kit.ts';

/** Words, of whose rollouts a share fails after the model has answered, as where a tool's server is away. */

const Args = z.strictObject({
  fail_share: z.number().min(0).max(1),
  /** Whether a failed rollout fails on every retry; if not, each retry fails with the same chance. */
  for_good: z.boolean().default(false),
});

const examples = 5_000;
/** Attempts of each rollout in this process, which reopens the environment for each attempt after the first. */
const plays = new Map<string, number>();

export function loadEnvironment(args: unknown): Environment {
  const { fail_share, for_good } = parseArgs('failing', Args, args);
  const rows = (from: number, count: number) =>
    listDataset(Array.from({ length: count }, (_, i) => ({ prompt: `go ${from + i}`, answer: '' })));
  const environment = singleTurn({
    name: 'failing',
    dataset: rows(0, examples),
    evalDataset: rows(examples, 100),
    rubric: rubric([{ name: 'chance', weight: 1, score: ({ completion }) => uniform('chance', completion) }]),
  });
  return {
    ...environment,
    // Or the model would be asked without asking `rollout`.
    isSingleTurn: false,
    async rollout(example, policy, place) {
      const record = await environment.rollout(example, policy, place);
      const at = `${example.id}/${place?.index ?? 0}`;
      const play = plays.get(at) ?? 0;
      plays.set(at, play + 1);
      if (uniform('fails', at, for_good ? 0 : play) < fail_share) throw new Error('the tool server is away');
      return record;
    },
  };
}
