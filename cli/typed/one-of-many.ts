import { RatchetError } from '../../core/errors.ts';

/**
 * Launchers that start the same command several times, with the variables for their number and for this one's index.
 */
const launchers = [
  { size: 'WORLD_SIZE', rank: 'RANK' },
  { size: 'OMPI_COMM_WORLD_SIZE', rank: 'OMPI_COMM_WORLD_RANK' },
] as const;

/**
 * Refuses a `train` that is typed once per node, as for torch.distributed: each would be a separate run. Throws
 * ConfigInvalid with what to type on this node.
 */
export function refuseOneOfMany(file: string, environment: NodeJS.ProcessEnv): void {
  for (const { size, rank } of launchers) {
    const [count, which] = [Number(environment[size] ?? 1), Number(environment[rank] ?? 0)];
    if (!(count > 1 || which > 0)) continue;
    const first = environment['MASTER_ADDR'] || 'the first node';
    const here =
      which > 0
        ? `This node joins it: TEMPORAL_ADDRESS=${first}:7233 npx ratchet-rl worker --role rollout (or --role train, where its GPU is to train)`
        : `This node starts it: env -u ${size} -u ${rank} npx ratchet-rl train ${file}`;
    throw new RatchetError(
      'ConfigInvalid',
      `${size}=${environment[size] ?? ''} ${rank}=${environment[rank] ?? ''}: expected one launch for all nodes, got one of several, each of which would be a run of its own. A run is started once, and the other nodes join it as workers. ${here}. All of them need a Temporal server and a store that they reach: docs/guide/several-machines.md.`,
    );
  }
}
