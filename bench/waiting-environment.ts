import { setTimeout as delay } from 'node:timers/promises';
import { listDataset, multiTurn, parseArgs, rubric, uniform, z } from 'ratchet-rl/environments';
import type { Environment } from 'ratchet-rl/environments';

/**
 * Conversations of a few short turns. After each turn the environment works for a while that costs no CPU, as one does that waits for a tool:
 * from half of `work_ms` to half more, so that rollouts that began together do not stay together. `burn_ms`: CPU time that it takes on top, in one
 * go, as an environment does that computes.
 */

const Args = z.strictObject({
  turns: z.int().positive().default(5),
  work_ms: z.int().min(0).default(50),
  burn_ms: z.int().min(0).default(0),
});

const examples = 5_000;

export function loadEnvironment(args: unknown): Environment {
  const { turns, work_ms, burn_ms } = parseArgs('waiting', Args, args);
  const rows = (from: number, count: number) =>
    listDataset(Array.from({ length: count }, (_, i) => ({ prompt: `go ${from + i}`, answer: '' })));
  const environment = multiTurn<number>({
    name: 'waiting',
    dataset: rows(0, examples),
    evalDataset: rows(examples, 100),
    maxTurns: turns,
    setup: () => 0,
    respond: ({ state }) => ({ state: state + 1, say: 'on' }),
    rubric: rubric([{ name: 'chance', weight: 1, score: ({ completion }) => uniform('chance', completion) }]),
  });
  return {
    ...environment,
    // Not in `respond`: that is asked once more where a stored rollout is scored.
    rollout: (example, policy, place) =>
      environment.rollout(
        example,
        {
          async sample(messages, options) {
            const turn = await policy.sample(messages, options);
            const share = 0.5 + uniform('work', example.id, place?.group ?? '', place?.index ?? 0, messages.length);
            burn(burn_ms);
            await delay(work_ms * share, undefined, place?.signal ? { signal: place.signal } : {});
            return turn;
          },
        },
        place,
      ),
  };
}

/** CPU time of this process: on a busy machine the same work takes longer. */
function burn(ms: number): void {
  const before = process.cpuUsage();
  for (;;) {
    const { user, system } = process.cpuUsage(before);
    if (user + system >= ms * 1000) return;
  }
}
