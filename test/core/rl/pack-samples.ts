import type { PackedRow } from '../../../core/rl/learning/batch.ts';
import { Packer } from '../../../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../../../core/rl/rollout/rollout.ts';

/** Groups that are in memory, whatever the order they arrived in. */
export function packSamples(
  groups: readonly ScoredGroup[],
  options: ConstructorParameters<typeof Packer>[0],
): { readonly samples: readonly PackedRow[] } & Pick<Packer, 'stats' | 'setAside'> {
  const packer = new Packer(options);
  const rows = groups.toSorted((a, b) => a.ordinal - b.ordinal).flatMap((group) => packer.pack(group).rows);
  const { stats, setAside } = packer;
  const isEachOne = rows.length === stats.rollouts && rows.every(({ rollout }, row) => rollout === row);
  const samples = rows.map(({ sample, rollout }) =>
    isEachOne ? sample : { ...sample, rollout: { index: rollout, of: stats.rollouts } },
  );
  return { samples, stats, setAside };
}
