import type { Client } from '@temporalio/client';
import { connect, findTemporal } from '../../workers/temporal/client.ts';
import { temporalTrouble } from '../../workers/temporal/temporal-trouble.ts';

/** Does `work` with the Temporal server of this folder or of TEMPORAL_ADDRESS, and closes the connection. */
export async function withTemporal<T>(work: (client: Client) => Promise<T>): Promise<T> {
  const { client, close } = await connect(await findTemporal(process.cwd()));
  try {
    return await work(client);
  } catch (error) {
    throw temporalTrouble(error);
  } finally {
    await close();
  }
}
