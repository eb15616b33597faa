import { Client, Connection } from '@temporalio/client';
import { RatchetError } from '../core/errors.ts';
import { readRunningStack } from '../workers/project-lock.ts';

export interface TemporalPlace {
  readonly address: string;
  readonly namespace: string;
}

/** Where Temporal is: TEMPORAL_ADDRESS, else what runs in this folder. */
export async function findTemporal(projectFolder: string): Promise<TemporalPlace> {
  const namespace = process.env['TEMPORAL_NAMESPACE'] ?? 'default';
  const given = process.env['TEMPORAL_ADDRESS'];
  if (given) return { address: given, namespace };
  const running = await readRunningStack(projectFolder);
  if (running?.temporalAddress) return { address: running.temporalAddress, namespace };
  throw new RatchetError(
    'ServerUnavailable',
    `Nothing of Ratchet runs in ${projectFolder}. Start it with \`ratchet dev\` or \`ratchet train FILE\`, or set TEMPORAL_ADDRESS to a server elsewhere.`,
  );
}

export async function connect({
  address,
  namespace,
}: TemporalPlace): Promise<{ client: Client; close: () => Promise<void> }> {
  try {
    const connection = await Connection.connect({ address, connectTimeout: '10s' });
    return { client: new Client({ connection, namespace }), close: () => connection.close() };
  } catch (cause) {
    throw new RatchetError(
      'ServerUnavailable',
      `No Temporal server answers at ${address}. Is it running, and is TEMPORAL_ADDRESS right?`,
      { cause },
    );
  }
}
