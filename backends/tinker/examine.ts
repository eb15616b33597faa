import { RatchetError } from '../../core/errors.ts';
import type { TinkerClient } from './client.ts';
import { loadModel, type ModelWish } from './load-model.ts';
import { measureAdam, measureLogprob, measureLoss, measureLosses, measureSampling } from './measure.ts';
import type { TinkerModel } from './model.ts';
import type { ServerFacts } from './server-facts.ts';
import { isTrouble } from './trouble.ts';

/**
 * Finds out what a server of one's own does, by models that are thrown away: the run's own come after them. A server
 * that refuses a second model beside the first holds one.
 */
export async function examineServer(
  client: TinkerClient,
  wish: Omit<ModelWish, 'from' | 'optimizer'>,
  say: (line: string) => void,
): Promise<ServerFacts> {
  const begun = { ...wish, from: null, optimizer: false };
  const model = await firstModel(client, begun, say);
  try {
    const { url } = client.http.address;
    const loss = await measureLoss(model, url);
    const logprob = await measureLogprob(model, url);
    const losses = loss && (await measureLosses(model, loss, logprob));
    const linearIn = loss?.linearIn ?? 'weights';
    const adam = await measureAdam(model, linearIn);
    const models = (await holdsAnother(client, begun)) ? 'several' : 'one';
    const sampleFrom = async (path: string): Promise<number> => {
      const params = { max_tokens: 1, temperature: 1, seed: 0 };
      const { sequences } = await client.sample({ path, baseModel: wish.baseModel, prompt: [1, 2], params });
      return sequences[0]?.logprobs[0] ?? Number.NaN;
    };
    // A server with one model is not asked: it may start an engine for it, and what was saved last is right everywhere.
    const sampling = models === 'one' ? 'latest' : await measureSampling(model, linearIn, sampleFrom);
    return { loss, losses, models, sampling, ...adam };
  } finally {
    await model.unload();
  }
}

async function holdsAnother(client: TinkerClient, wish: ModelWish): Promise<boolean> {
  try {
    const second = await client.createModel(wish);
    await second.unload();
    return true;
  } catch (error) {
    if (isTrouble(error, 'full')) return true; // it has several, and no room now
    if (isTrouble(error, 'refused', 'failed')) return false;
    throw error;
  }
}

/** A model of a worker that died may be there still: a refusal is waited out unless it names what was asked for. */
async function firstModel(client: TinkerClient, wish: ModelWish, say: (line: string) => void): Promise<TinkerModel> {
  try {
    return await client.createModel(wish);
  } catch (error) {
    const isOfRank = isTrouble(error, 'refused', 'failed') && /\brank\b|lora_config/i.test(error.message);
    if (isOfRank && wish.rank === 0) throw noFullWeights(error, client.http.address.url);
    if (isOfRank || !isTrouble(error, 'refused', 'failed', 'full')) throw error;
    return loadModel(client, { ...wish, makeRoom: () => Promise.resolve(), isUntried: true }, say);
  }
}

function noFullWeights(error: Error, url: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `The server at ${url} does not train all weights: it refused a model of rank 0 (${error.message}). Add [lora], or start the server with a backend that does.`,
    { cause: error },
  );
}
