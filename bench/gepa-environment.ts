import { listDataset, parseArgs, rubric, singleTurn, z } from '../backends/environments/kit.ts';
import type { Environment } from '../backends/environments/kit.ts';
import { judge, makeWorld, type Task } from './gepa-world.ts';

/** The tasks of the simulated world as an environment. The column `feedback` says what an answer lacked. */

const Args = z.strictObject({
  seed: z.int().min(0).default(0),
  train: z.int().positive().default(100),
  val: z.int().positive().default(50),
});

export function loadEnvironment(args: unknown): Environment {
  const { seed, train, val } = parseArgs('gepa-world', Args, args);
  const world = makeWorld(seed, { components: 1, train, val, test: 0 });
  const datasetOf = (tasks: readonly Task[]) =>
    listDataset(
      tasks.map(({ input, needs }) => ({
        prompt: [
          { role: 'system' as const, content: world.start['system_prompt']! },
          { role: 'user' as const, content: input },
        ],
        answer: needs.join(' '),
      })),
    );
  const tell = (needs: string, answer: string) =>
    judge({ id: '', input: '', needs: needs.split(' ') }, answer, world.rules);
  const environment = singleTurn({
    name: 'gepa-world',
    dataset: datasetOf(world.train),
    evalDataset: datasetOf(world.val),
    rubric: rubric([
      { name: 'followed', weight: 1, score: ({ completion, example }) => tell(example.answer, completion).score },
    ]),
  });
  return {
    ...environment,
    async rollout(example, policy, place) {
      const played = await environment.rollout(example, policy, place);
      const { feedback } = tell(example.answer, played.turns.at(-1)?.text ?? '');
      return { ...played, record: { feedback: feedback.join('\n') || 'Good.' } };
    },
  };
}
