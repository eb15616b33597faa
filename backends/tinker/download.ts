import { createWriteStream } from 'node:fs';
import { mkdir, readdir, realpath, rm } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { openRegular } from '../../host/regular-file.ts';
import { unpackArchive } from './archive.ts';
import type { TinkerClient } from './client.ts';
import { FileUrl } from './http.ts';
import type { TinkerModel } from './model.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';
import { weightFilesOf } from './version-files.ts';

const Urls = z.looseObject({ urls: z.record(z.string(), z.url()) });
/**
 * Files are downloaded at once, so their copy may be short-lived; the shortest time that the hosted service accepts.
 */
const externalTtlS = 3600;
/** Generous limit on the files of an adapter. */
const filesMax = 100;

interface Download {
  readonly client: TinkerClient;
  readonly model: TinkerModel;
  readonly samplerPath: string;
  /** Where the server's checkpoints are on this machine, for servers that give no bytes of them. */
  readonly checkpointDir: string | null;
}

/**
 * Brings the weights at a sampler's path into an empty folder: an adapter in PEFT's form, or all weights in Hugging
 * Face's. They come as an archive (SkyRL); file by file, as an external copy (the hosted service); or are read where the
 * server has written them (TuFT, twinkle).
 */
export async function downloadWeights(download: Download, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  if (download.client.isHosted) await external(download, folder);
  else await archive(download, folder);
  const files = await weightFilesOf(folder);
  if (files.some((name) => name.endsWith('.safetensors'))) return;
  const found = (await readdir(folder)).slice(0, 10).join(', ') || 'no file';
  throw new TinkerTrouble(
    'failed',
    `${download.samplerPath}: expected weights in what was downloaded (adapter_model.safetensors, or *.safetensors of the whole model), got ${found}.`,
  );
}

async function archive(download: Download, folder: string): Promise<void> {
  const { client, model, samplerPath, checkpointDir } = download;
  const name = samplerPath.split('/').at(-1)!;
  const route = `/api/v1/training_runs/${encodeURIComponent(model.id)}/checkpoints/${encodeURIComponent(name)}/archive`;
  const where = client.http.address.url + route;
  let taken: string[] | FileUrl;
  try {
    taken = await client.http.download(route, async (body) => {
      await emptied(folder);
      return unpackArchive(body, folder, where);
    });
  } catch (error) {
    const hasNone = isTrouble(error) && error.status === 404 && !/checkpoint/i.test(error.message.replace(where, ''));
    if (!hasNone || checkpointDir === null) throw hasNone ? noBytes(where, 'has no archives') : error;
    return copyWeights(await folderBelow(checkpointDir, model.id, samplerPath), folder, checkpointDir);
  }
  if (!(taken instanceof FileUrl)) return;
  if (checkpointDir === null) throw noBytes(where, `names a folder of its own machine (${taken.href})`);
  await copyWeights(placeOf(taken, where), folder, checkpointDir);
}

function placeOf(url: FileUrl, where: string): string {
  try {
    return fileURLToPath(url);
  } catch (cause) {
    throw new TinkerTrouble('refused', `${where}: expected the place of a folder, as file:///path/of/it, got ${url.href}.`, { cause }); // prettier-ignore
  }
}

function noBytes(where: string, does: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${where}: this server ${does}, so its weights have to be read from its disk. Expected [trainer] checkpoint_dir, the folder of its checkpoints as the GPU worker sees it under the same path; got none.`,
  );
}

/** The folder `…/MODEL/sampler_weights/NAME`, wherever the server keeps those of its users. */
async function folderBelow(checkpointDir: string, modelId: string, samplerPath: string): Promise<string> {
  let level = [checkpointDir];
  for (let depth = 0; depth < 4; depth++) {
    const next: string[] = [];
    for (const folder of level) {
      const entries = await readdir(folder, { withFileTypes: true });
      if (entries.some((entry) => entry.name === modelId && entry.isDirectory()))
        return path.join(folder, modelId, 'sampler_weights', path.basename(samplerPath));
      next.push(...entries.filter((entry) => entry.isDirectory()).map((entry) => path.join(folder, entry.name)));
    }
    level = next.slice(0, 10_000);
  }
  throw new TinkerTrouble('failed', `${checkpointDir}: expected a folder ${modelId} of the server’s checkpoints below it, got none. [trainer] checkpoint_dir names where the server writes them.`); // prettier-ignore
}

/** Copies files of weights, from this folder or its `adapter`; what is not really below `checkpoint_dir` is refused. */
async function copyWeights(from: string, folder: string, checkpointDir: string): Promise<void> {
  await emptied(folder);
  const root = await realpath(checkpointDir);
  let found: string;
  try {
    found = await realpath(from);
  } catch (cause) {
    throw new TinkerTrouble('failed', `${from}: the server says that its weights are there, but this machine has no such folder. It must see the server’s [trainer] checkpoint_dir under the same path.`, { cause }); // prettier-ignore
  }
  if (found !== root && !found.startsWith(root + path.sep))
    throw new TinkerTrouble('refused', `${from}: expected a folder below [trainer] checkpoint_dir (${checkpointDir}); nothing else is read.`); // prettier-ignore
  const inner = path.join(found, 'adapter');
  const names = await readdir(found);
  const place = names.includes('adapter') ? inner : found;
  for (const name of await weightFilesOf(place)) {
    const file = path.join(place, name);
    const opened = await openRegular(file, { within: [root] });
    await pipeline(opened.createReadStream(), createWriteStream(path.join(folder, name)));
  }
}

async function external({ client, model }: Download, folder: string): Promise<void> {
  const saved = await model.saveExternal(`download-${Date.now().toString(36)}`, externalTtlS);
  const name = saved.split('/').slice(3).join('/');
  const route = `/api/v1/training_runs/${encodeURIComponent(model.id)}/checkpoints/${name}/external_weights_urls`;
  const { urls } = client.read(Urls, await client.http.get(route), route);
  for (const [file, url] of Object.entries(urls).slice(0, filesMax)) {
    if (/[/\\\0]/.test(file) || file === '..') continue; // files below the weights are none of them
    const target = path.join(folder, file);
    await client.http.download(url, async (body) => pipeline(body, createWriteStream(target)));
  }
}

async function emptied(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
}
