import { randomUUID } from 'node:crypto';
import { RatchetError } from '../../core/errors.ts';
import { processesOpen } from '../../host/processes-open.ts';
import type { TinkerClient } from './client.ts';
import { examineServer } from './examine.ts';
import { loadModel, type ModelWish, pathsOf } from './load-model.ts';
import type { TinkerModel } from './model.ts';
import type { ServerFacts } from './server-facts.ts';
import { nextName, samplerName, type TinkerVersion } from './version-files.ts';

/** Models with fixed weights for sampling: the newest version's, and the one that rollouts still end on. */
const servedModelsMax = 2;

type Begun = Pick<TinkerVersion, 'baseModel' | 'rank' | 'seed'>;

/**
 * The models of a trainer on a server. There is one at the version in work; what becomes of it after a step depends on
 * what the server was found to do:
 *
 *     sampling in the model    (SkyRL's JAX backend) it is only sampled from, and another one is loaded from its checkpoint
 *     sampling apart           (the hosted service, TuFT, twinkle) it is trained on
 *     sampling the latest      (SkyRL's Megatron and FSDP backends) it is trained on, and what it saved last is sampled
 *
 * Of these, SkyRL's FSDP backend and full weights have room for one model, so another one has to go first.
 *
 * A model that was lost is replaced by a new one, from the version's training checkpoint: no gradient of a broken step is
 * left in it.
 */
export class ModelRoom {
  /** null: the hosted service, which is as it is documented; or nothing is known yet. */
  facts: ServerFacts | null = null;
  /** Adapted layers, if the server offers a choice. */
  layers: NonNullable<ModelWish['trained']> = { attention: true, mlp: true, unembedding: false };
  readonly #client: TinkerClient;
  readonly #say: (line: string) => void;
  /** The version that a model is to hold. */
  #version: TinkerVersion | null = null;
  #withOptimizer = false;
  /** The model with that version, loaded or loading. */
  #model: Promise<TinkerModel> | null = null;
  /** The end of a model that was discarded: a server with room for one has none before. */
  #dropped: Promise<unknown> = Promise.resolve();
  /** Models after the step that made their version; they are not trained any more. */
  #served: TinkerModel[] = [];
  /** Models with checkpoints of versions: some servers forget these with their model. */
  readonly #owners = new Set<string>();
  /** Model of the KL penalty's reference. */
  #reference: { readonly digest: string; readonly model: Promise<TinkerModel> } | null = null;

  constructor(client: TinkerClient, say: (line: string) => void) {
    this.#client = client;
    this.#say = say;
    // A process that ends unloads its models: the next run may need the room before the session is over.
    processesOpen.add(() => this.empty());
  }

  /** The model that the newest version is sampled from, where that is another one than the one in training. */
  get sampled(): TinkerModel | undefined {
    return this.#served.at(-1);
  }

  async know(version: Begun & Pick<TinkerVersion, 'server'>): Promise<ServerFacts | null> {
    if (this.#client.isHosted) return null;
    this.facts ??= version.server ?? null;
    const { baseModel, rank, seed } = version;
    this.facts ??= await examineServer(this.#client, { baseModel, rank, seed, trained: this.layers }, this.#say);
    return this.facts;
  }

  /** A model in its initial state. */
  async begin(begun: Begun): Promise<TinkerModel> {
    const model = await this.#load(begun, { from: null, optimizer: false });
    this.#model = Promise.resolve(model);
    return model;
  }

  /** Names the version that the next model is to hold. */
  point(version: TinkerVersion, { optimizer }: { readonly optimizer: boolean }): void {
    this.#version = version;
    this.#withOptimizer = optimizer;
  }

  /** The model at the version, loaded now if there is none. */
  ready(): Promise<TinkerModel> {
    return (this.#model ??= this.#restored());
  }

  /**
   * Two checkpoints of a model. Where its latest weights are what is sampled, the one for training comes first: then
   * every sample that may be of later weights is known by it.
   */
  async save(
    model: TinkerModel,
    before: string | null,
    ttlS: number | null,
  ): Promise<Pick<TinkerVersion, 'trainingPath' | 'samplerPath'>> {
    const name = nextName(before, randomUUID());
    this.#owners.add(model.id);
    const [training, sampler] = [
      () => model.saveWeights(name, ttlS),
      () => model.saveForSampler(samplerName(name), ttlS),
    ];
    if (this.facts?.sampling === 'latest') {
      const trainingPath = await training();
      return { trainingPath, samplerPath: await sampler() };
    }
    const [trainingPath, samplerPath] = await Promise.all([training(), sampler()]);
    return { trainingPath, samplerPath };
  }

  /** The model's state is this version now. */
  anchored(model: TinkerModel, version: TinkerVersion): void {
    this.point(version, { optimizer: true });
    if (this.facts?.sampling !== 'in the model') return;
    this.#served = [...this.#served, model];
    for (const old of this.#served.splice(0, this.#served.length - servedModelsMax)) void old.unload();
    this.#model = this.#restored();
    this.#model.catch(() => undefined); // the next caller gets the rejection
  }

  /** Drops the model; the next one is loaded from the version. */
  discard(): void {
    const model = this.#model;
    this.#model = null;
    const drop = async (): Promise<void> => {
      const found = await model?.catch(() => null);
      if (found && this.#mayUnload(found.id)) await found.unload();
    };
    this.#dropped = drop().catch(() => undefined);
  }

  async reference({ digest, baseModel, rank, seed, trainingPath }: TinkerVersion): Promise<TinkerModel> {
    if (this.facts?.models === 'one')
      throw new RatchetError(
        'Unsupported',
        `The Tinker server at ${this.#client.http.address.url} holds one model at a time, and the reference of a [kl_penalty] is a second one. Leave [kl_penalty] out, or start a server that holds several.`,
      );
    if (this.#reference?.digest !== digest) {
      await this.forgetReference();
      const model = this.#load({ baseModel, rank, seed }, { from: trainingPath, optimizer: false });
      model.catch(() => undefined);
      this.#reference = { digest, model };
    }
    return this.#reference.model;
  }

  async forgetReference(): Promise<void> {
    const model = this.#reference?.model;
    this.#reference = null;
    await (await model?.catch(() => null))?.unload();
  }

  /** Unloads all models but the one with this id, which is sampled from. */
  async empty(kept?: string): Promise<void> {
    const models = [...this.#served, await this.#model?.catch(() => null)];
    this.#served = this.#served.filter(({ id }) => id === kept);
    this.#model = null;
    await this.#dropped;
    for (const model of models) if (model && model.id !== kept && this.#mayUnload(model.id)) await model.unload();
  }

  /** TuFT forgets the checkpoints of a model that is unloaded: one that may be needed stays. */
  #mayUnload(id: string): boolean {
    if (this.#served.some((served) => served.id === id)) return false;
    const { models, sampling } = this.facts ?? {};
    return !(models === 'several' && sampling === 'apart' && this.#owners.has(id));
  }

  async #restored(): Promise<TinkerModel> {
    const version = this.#version!;
    const from = version.trainingPath;
    // Its path would still be sampled from the model that has it, which may be at later weights.
    if (this.facts?.sampling === 'latest') await this.#makeRoom();
    const model = await this.#load(version, { from, optimizer: this.#withOptimizer });
    // The server samples from what was saved for it last, and that was another version, or in another model.
    if (this.facts?.sampling === 'latest') await model.saveForSampler(samplerName(from), null);
    return model;
  }

  async #load(begun: Begun, state: Pick<ModelWish, 'from' | 'optimizer'>): Promise<TinkerModel> {
    await this.#dropped;
    const { baseModel, rank, seed } = begun;
    const room = this.facts?.models === 'one' ? { makeRoom: () => this.#makeRoom() } : {};
    return loadModel(this.#client, { baseModel, rank, seed, ...state, ...room, trained: this.layers }, this.#say);
  }

  /** Unloads the models that hold the version: that of a worker before this one, and one that a sampler has loaded. */
  async #makeRoom(): Promise<void> {
    if (!this.#version) return;
    const held = await pathsOf(this.#client, this.#version);
    for (const id of new Set([this.#version.modelId, ...held.map(({ modelId }) => modelId)]))
      await this.#client.modelOf(id).unload();
  }
}
