import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { failpoint } from '../../store/failpoints.ts';
import type { TinkerVersion } from './version-files.ts';
import { samplerName } from './version-files.ts';
import type { TinkerClient } from './client.ts';
import type { TinkerModel } from './model.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';

export interface ModelWish {
  readonly baseModel: string;
  /** 0 = all weights. */
  readonly rank: number;
  readonly seed: number;
  /** Adapted layers, if the server offers a choice. */
  readonly trained?: { readonly attention: boolean; readonly mlp: boolean; readonly unembedding: boolean };
  /** A checkpoint to load; null = the initial state. */
  readonly from: string | null;
  /** Include the checkpoint's moments. SkyRL 0.3.0 always loads them. */
  readonly optimizer: boolean;
  /** Frees the room of a server that holds one model; refusals then mean that it has another one. */
  readonly makeRoom?: () => Promise<void>;
  /** Whether the server takes such models is not known yet: a refusal that speaks of no other model is one for good. */
  readonly isUntried?: boolean;
}

const roomPauseMs = 5_000;
/** Words of a server whose only model is taken. */
const speaksOfAnother = /\b(?:single|only one|one (?:policy )?model|another|already|existing|in use|busy|occupied)\b/i;

/**
 * A new model with a checkpoint's weights. Waits while the server has no room for another one. Throws `missing` if the
 * checkpoint no longer exists.
 */
export async function loadModel(
  client: TinkerClient,
  wish: ModelWish,
  say: (line: string) => void,
): Promise<TinkerModel> {
  try {
    return await loadWhenThereIsRoom(client, wish, say);
  } finally {
    client.http.waits.end(wish);
  }
}

async function loadWhenThereIsRoom(
  client: TinkerClient,
  wish: ModelWish,
  say: (line: string) => void,
): Promise<TinkerModel> {
  const model = await createWhenThereIsRoom(client, wish, say);
  if (wish.from === null) return model;
  try {
    await model.loadWeights(wish.from, { optimizer: wish.optimizer });
  } catch (error) {
    await model.unload();
    throw error;
  }
  await failpoint('tinker.loaded');
  return model;
}

async function createWhenThereIsRoom(
  client: TinkerClient,
  wish: ModelWish,
  say: (line: string) => void,
): Promise<TinkerModel> {
  const giveUpAt = performance.now() + client.roomPatienceMs;
  for (let attempt = 1; ; attempt++) {
    try {
      return await client.createModel(wish);
    } catch (error) {
      const isTaken = isTrouble(error, 'full') || (wish.makeRoom && isTrouble(error, 'refused', 'failed'));
      if (!isTaken) throw error;
      const isOver = performance.now() > giveUpAt;
      const isOfRoom = error.kind === 'full' || speaksOfAnother.test(error.message);
      if (isOver && wish.isUntried && !isOfRoom) throw error;
      const needs = wish.makeRoom
        ? 'This server holds one model at a time: another run that trains there keeps it until it ends or rests.'
        : 'A run needs room for 3 beside the base, and one more for each worker after a restart (max_lora_adapters ≥ 8).';
      const why = `${error.message}: waiting for room. Models of a process that died stay until its session ends (SkyRL: --session-timeout-sec). ${needs}`;
      if (isOver) throw new TinkerTrouble('full', why, { cause: error });
      client.http.waits.begin(wish, why);
      await wish.makeRoom?.();
      if (attempt === 1 && wish.makeRoom) continue;
      if (attempt <= 2) say(why);
      await delay(roomPauseMs);
    }
  }
}

/** Models that are asked at once for their checkpoints: a server that has been there for long has had thousands. */
const askedAtOnce = 8;

/**
 * The sampler's paths of a version on a server that samples what was saved last: the trainer and the samplers save it
 * there under one name, in whichever model has it then. The latest comes first.
 */
export async function pathsOf(
  client: TinkerClient,
  { baseModel, trainingPath }: Pick<TinkerVersion, 'baseModel' | 'trainingPath'>,
): Promise<readonly { readonly modelId: string; readonly path: string }[]> {
  const name = `/sampler_weights/${samplerName(trainingPath)}`;
  const pathIn = async (modelId: string): Promise<{ modelId: string; path: string }[]> => {
    const paths = await client.checkpointsOf(modelId).catch(() => []);
    const path = paths.find((each) => each.endsWith(name));
    return path === undefined ? [] : [{ modelId, path }];
  };
  const models = await client.modelsOn(baseModel);
  const found: { modelId: string; path: string }[] = [];
  for (let from = 0; from < models.length; from += askedAtOnce)
    found.push(...(await Promise.all(models.slice(from, from + askedAtOnce).map(pathIn))).flat());
  return found;
}

/** The server's name of its only model, if the config names none. */
export async function onlyModelOf(client: TinkerClient): Promise<string> {
  const models = await client.capabilities();
  if (models.length === 1) return models[0]!.name;
  const found = models.map(({ name }) => name).join(', ') || 'none';
  throw new RatchetError(
    'ConfigInvalid',
    `[trainer] base_model: expected the name of one of the models of ${client.http.address.url} (${found}); it has ${models.length}, so it must be named.`,
  );
}

/** Converts a call's trouble to one of our errors, for a trainer. */
export function trainerError(error: unknown): unknown {
  if (!(error instanceof TinkerTrouble)) return error;
  const { message, kind } = error;
  const options = { cause: error };
  switch (kind) {
    case 'away':
      return new RatchetError('TrainerUnavailable', message, options);
    case 'full':
      return new RatchetError('TrainerUnavailable', `${message}. The server has no room for another model.`, options);
    case 'missing':
      return new RatchetError(
        'CheckpointDamaged',
        `${message}. The server has lost this checkpoint: it expired ([trainer] checkpoint_ttl), or was deleted. An adapter in the store cannot be sent back to such a server; an older checkpoint can be continued from.`,
        options,
      );
    case 'refused':
      return new RatchetError('Unsupported', message, options);
    case 'lost':
    case 'failed':
      return new RatchetError('EngineDied', message, options);
    default:
      return kind satisfies never;
  }
}
