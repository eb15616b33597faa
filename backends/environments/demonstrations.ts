import { environmentTraits } from '../../core/kinds/environments.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Environment } from './types.ts';
import { RatchetError } from '../../core/errors.ts';
import { randomStream, uniform } from '../../core/random.ts';
import type { TrainSample } from '../../core/rl/learning/batch.ts';
import { drawByWeight } from '../../core/rl/sampling/curriculum.ts';
import type { ChatTokenizer } from '../../engine/index.ts';
import { openEnvironment } from './index.ts';
import { demonstrationRows } from '../../core/rl/rollout/demonstration-rows.ts';

/** Why a run's warm-up has no demonstrations; null if it has. `environments` = those of the training. */
export function whyNoDemonstrations(
  { sft }: Pick<RunSpec, 'sft'>,
  environments: readonly Pick<Environment, 'name' | 'demonstrate'>[],
): { readonly expected: string; readonly received: string } | null {
  if (!sft || sft.data || environments.some(({ demonstrate }) => demonstrate !== undefined)) return null;
  const names = environments.map(({ name }) => name).join(', ');
  return {
    expected: 'environments that give demonstrations, or rows of your own: [sft] data = "rows.jsonl"',
    received: `none of ${names} gives any (those of verifiers do not)`,
  };
}

/** The rows of warm-up step n: examples and demonstrations drawn by (seed, step, row). */
export async function demonstrations(
  spec: RunSpec,
  tokenizer: ChatTokenizer,
): Promise<(step: number) => Promise<TrainSample[]>> {
  // Avoids starting a process for environments without demonstrations.
  const own = spec.environments.filter((entry) => environmentTraits(entry).demonstrates);
  const environments = await Promise.all(
    own.map(async (entry) => ({ ...entry, environment: await openEnvironment(entry) })),
  );
  const able = environments.filter(({ environment }) => environment.demonstrate !== undefined);
  if (able.length === 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `[sft] asks for a warm-up, but none of the environments (${spec.environments.map(({ name }) => name).join(', ')}) gives demonstrations. Give it rows of your own with [sft] data, or remove [sft].`,
    );
  }
  const draw = async (step: number, row: number): Promise<TrainSample[]> => {
    const place = [spec.seed, 'sft', step, row] as const;
    const { environment } = drawByWeight(able, uniform(...place, 'environment'));
    const example = environment.dataset.at(Math.floor(uniform(...place, 'example') * environment.dataset.length));
    const demonstration = await environment.demonstrate!(example, randomStream(...place));
    const { templateArguments } = spec.sampling;
    return demonstrationRows(tokenizer, example.prompt, demonstration, { tools: environment.tools, templateArguments });
  };
  return async (step) => {
    const drawn = Array.from({ length: spec.sft!.batchSize }, (_, row) => draw(step, row));
    return (await Promise.all(drawn)).flat();
  };
}
