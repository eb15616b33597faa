import { RatchetError } from '../../core/errors.ts';

/**
 * Launchers that start the same command several times, with the variables for their number and for this one's index.
 */
const launchers = [
  { size: 'WORLD_SIZE', rank: 'RANK' },
  { size: 'OMPI_COMM_WORLD_SIZE', rank: 'OMPI_COMM_WORLD_RANK' },
] as const;

/** One of several launches of the same command, as for torch.distributed. */
interface Launch {
  readonly size: number;
  readonly rank: number;
  /** The variables that say so, as they are set. */
  readonly said: string;
  readonly names: readonly string[];
}

/** Null where the command was typed once. */
export function launchOf(environment: Readonly<NodeJS.ProcessEnv>): Launch | null {
  for (const { size, rank } of launchers) {
    const [count, which] = [Number(environment[size] ?? 1), Number(environment[rank] ?? 0)];
    if (!(count > 1 || which > 0)) continue;
    const said = `${size}=${environment[size] ?? ''} ${rank}=${environment[rank] ?? ''}`;
    return { size: count, rank: which, said, names: [size, rank] };
  }
  return null;
}

/** The command for a node where each launch would be a separate run, since the trainer is no group of nodes. */
export function oneOfManyRefusal(file: string, launch: Launch, environment: Readonly<NodeJS.ProcessEnv>): RatchetError {
  const first = environment['MASTER_ADDR'] || 'the first node';
  const here =
    launch.rank > 0
      ? `This node joins it: TEMPORAL_ADDRESS=${first}:7233 npx ratchet-rl worker --role rollout (or --role train, where its GPU is to train)`
      : `This node starts it: env ${launch.names.map((name) => `-u ${name}`).join(' ')} npx ratchet-rl train ${file}`;
  return new RatchetError(
    'ConfigInvalid',
    `${launch.said}: expected one launch for all nodes, got one of several, each of which would be a run of its own. Only with [trainer] kind = "torch" or "prime-rl" do several nodes train one run (MASTER_ADDR, WORLD_SIZE, RANK). Else a run is started once, and the other nodes join it as workers. ${here}. All of them need a Temporal server and a store that they reach: docs/guide/several-machines.md.`,
  );
}
