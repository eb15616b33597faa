import { z } from 'zod';
import { readTarGz } from './archive.ts';
import type { TinkerClient, TinkerModel } from './client.ts';
import { TinkerTrouble } from './trouble.ts';

const Urls = z.looseObject({ urls: z.record(z.string(), z.url()) });
/**
 * Files are downloaded at once, so their copy may be short-lived; the shortest time that the hosted service accepts.
 */
const externalTtlS = 3600;
const downloadTimeoutMs = 30 * 60_000;
/** Limit for all files of an adapter: those of the largest models take hundreds of MB. */
const downloadBytesMax = 4 * 2 ** 30 - 1;
/** Generous limit on an adapter's files. */
const filesMax = 100;

/**
 * Downloads the adapter at a sampler's path as PEFT files: from SkyRL as an archive, from the hosted service as an
 * external copy, file by file.
 */
export async function downloadAdapter(
  client: TinkerClient,
  model: TinkerModel,
  samplerPath: string,
): Promise<ReadonlyMap<string, Uint8Array>> {
  const files = client.usesProtobuf ? await external(client, model) : await archive(client, model, samplerPath);
  for (const name of ['adapter_model.safetensors', 'adapter_config.json']) {
    if (files.has(name)) continue;
    throw new TinkerTrouble(
      'failed',
      `${samplerPath}: expected ${name} in what was downloaded, got ${[...files.keys()].join(', ')}.`,
    );
  }
  return files;
}

async function archive(client: TinkerClient, { id }: TinkerModel, path: string): Promise<Map<string, Uint8Array>> {
  const name = path.split('/').at(-1)!;
  const route = `/api/v1/training_runs/${encodeURIComponent(id)}/checkpoints/${encodeURIComponent(name)}/archive`;
  const { bytes } = await client.http.get(route, { timeoutMs: downloadTimeoutMs, bytesMax: downloadBytesMax });
  return readTarGz(bytes, client.http.address.url + route);
}

async function external(client: TinkerClient, model: TinkerModel): Promise<Map<string, Uint8Array>> {
  const path = await model.saveExternal(`download-${Date.now().toString(36)}`, externalTtlS);
  const name = path.split('/').slice(3).join('/');
  const route = `/api/v1/training_runs/${encodeURIComponent(model.id)}/checkpoints/${name}/external_weights_urls`;
  const { urls } = client.read(Urls, await client.http.get(route), route);
  const files = new Map<string, Uint8Array>();
  let left = downloadBytesMax;
  for (const [file, url] of Object.entries(urls).slice(0, filesMax)) {
    if (file.includes('/') || file.includes('\\')) continue; // files below the adapter are not its weights
    const { bytes } = await client.http.get(url, { timeoutMs: downloadTimeoutMs, bytesMax: left });
    files.set(file, bytes);
    left -= bytes.length;
  }
  return files;
}
