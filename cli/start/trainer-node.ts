import { type KindOnNodes, nodesPlace } from '../../backends/nodes/node-link.ts';
import { type NodeOptions, serveTrainerNode } from '../../backends/nodes/trainer-node.ts';
import { openPrimeRlNode } from '../../backends/prime-rl/node-group.ts';
import { openTorchNode } from '../../backends/torch/node-group.ts';
import { RatchetError } from '../../core/errors.ts';
import { ownSecret, secretFileOf } from '../../host/project-secret.ts';
import { print } from '../output/print.ts';

/** Each looks for its Python, and throws where that lacks something. */
const opens: Readonly<
  Record<KindOnNodes, (program: string | null, projectFolder: string) => Promise<NodeOptions['open']>>
> = {
  torch: openTorchNode,
  'prime-rl': openPrimeRlNode,
};

/** Gives this machine's ranks to a trainer whose first node is elsewhere, until it is told to end. */
export async function runTrainerNode({
  kind,
  program,
  endsWithRun,
  onReady = () => undefined,
}: {
  readonly kind: KindOnNodes;
  /** As `[trainer] program`. */
  readonly program: string | null;
  readonly endsWithRun: boolean;
  /** Called when it has found its program, and joins. */
  readonly onReady?: () => void;
}): Promise<void> {
  const place = nodesPlace(process.env);
  const rank = Number(process.env['RANK'] ?? Number.NaN);
  if (place === null || !Number.isInteger(rank) || rank < 1)
    throw new RatchetError(
      'ConfigInvalid',
      `A node of a trainer needs the address of the first one and its own number: expected MASTER_ADDR (and MASTER_PORT, 29500 if missing) and RANK of 1 or more, got MASTER_ADDR=${process.env['MASTER_ADDR'] ?? ''} RANK=${process.env['RANK'] ?? ''}.`,
    );
  const secret = ownSecret();
  if (secret === null)
    throw new RatchetError(
      'ConfigInvalid',
      `A node of a trainer shows the first one the secret of its project folder. ${secretFileOf(process.cwd())} is not there: copy it from the first node (RATCHET_SECRET_FILE names another file).`,
    );
  const open = await opens[kind](program, process.cwd());
  onReady();
  const interrupted = new AbortController();
  const end = (): void => interrupted.abort();
  process.once('SIGINT', end).once('SIGTERM', end);
  await serveTrainerNode({ place, rank, secret, kind, open, endsWithRun, say: print, signal: interrupted.signal });
  process.exit(0);
}
