import type { Client } from '@temporalio/client';
import type { Person } from '../../core/roles.ts';
import { connect, findTemporal } from '../../workers/temporal/client.ts';
import { temporalTrouble } from '../../workers/temporal/temporal-trouble.ts';

/** Does `work` with the Temporal server of this folder or of TEMPORAL_ADDRESS, and closes the connection. */
export async function withTemporal<T>(work: (client: Client) => Promise<T>, as?: Person): Promise<T> {
  const { client, close } = await connect(await findTemporal(process.cwd()), as);
  try {
    return await work(client);
  } catch (error) {
    throw temporalTrouble(error);
  } finally {
    await close();
  }
}
