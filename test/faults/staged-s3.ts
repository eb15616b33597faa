/** A real S3 server for the runs of a stage, behind a proxy that does to their requests what a fault asks for. */
import path from 'node:path';
import { resolveStoreUri } from '../../store/index.ts';
import { startProxy, type MisbehavingProxy } from '../backends/misbehaving-proxy.ts';
import { skipWithoutGateway, startGateway } from '../store/s3-gateway.ts';
import type { Surroundings } from './stage-kinds.ts';
import { StageUnavailable } from './stage-unavailable.ts';

export interface StagedS3 {
  /** All processes of the stage reach the server through it, and only they: the test reads past it. */
  readonly proxy: MisbehavingProxy;
}

export async function makeS3(folder: string): Promise<Surroundings> {
  if (skipWithoutGateway !== false) throw new StageUnavailable(skipWithoutGateway);
  const gateway = await startGateway(); // from now on its credentials are in our environment, as a user's would be
  const proxy = await startProxy(gateway.port);
  const { bucket } = gateway.location('');
  return {
    environment: { RATCHET_CACHE: path.join(folder, 'cache') },
    overrides: { 'store.uri': `s3://${bucket}/team/`, 'store.endpoint': `http://127.0.0.1:${proxy.port}` },
    storeUri: s3Uri(bucket, gateway.port),
    s3: { proxy },
    async close() {
      await proxy.close();
      await gateway.remove();
    },
  };
}

function s3Uri(bucket: string, port: number): string {
  const options = new URLSearchParams({ endpoint: `http://127.0.0.1:${port}`, path_style: 'true' });
  return resolveStoreUri(`s3://${bucket}/team/?${options.toString()}`, '/');
}
