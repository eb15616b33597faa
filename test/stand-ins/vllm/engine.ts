import { cp, mkdir, readFile, writeFile } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { decodeSafetensors, encodeSafetensors } from '../../../engine/index.ts';
import { type Body, Refused } from './body.ts';
import type { Faults } from './server.ts';

const engineIsDead = 'EngineCore encountered an issue. See stack trace (above) for the root cause.';

type Choice = Body & {
  readonly token_ids: readonly number[];
  readonly logprobs?: { readonly token_logprobs: readonly number[] } | null;
  readonly sampling_logprobs?: readonly number[];
};

/** Weights and arithmetic of the stand-in: a policy server of ours behind it, whose versions have names of its own. */
export class Engine {
  readonly #inner: string;
  readonly #scratch: string;
  readonly #faults: Faults;
  readonly #adapters = new Map<string, { readonly id: string; readonly folder: string }>();
  #base = { id: '', folder: '' };
  #count = 0;
  label = 'default';
  isPaused = false;
  #isHalfLoaded = false;

  readonly #hasRawLogprobs: boolean;
  readonly #maxLoraRank: number;

  constructor(
    inner: string,
    scratch: string,
    {
      faults,
      hasRawLogprobs,
      maxLoraRank,
    }: { readonly faults: Faults; readonly hasRawLogprobs: boolean; readonly maxLoraRank: number },
  ) {
    this.#inner = inner;
    this.#scratch = scratch;
    this.#faults = faults;
    this.#hasRawLogprobs = hasRawLogprobs;
    this.#maxLoraRank = maxLoraRank;
  }

  get adapters(): string[] {
    return [...this.#adapters.keys()];
  }

  async loadBase(folder: string): Promise<void> {
    const id = `base-${this.#count++}`;
    await this.#ask('/update_weights', { name: id, weight_dir: folder });
    this.#base = { id, folder };
  }

  /** On the weights that it has now, whatever weights they were trained on, as vLLM does. */
  async loadAdapter({ lora_name: name, lora_path: folder }: Body): Promise<string> {
    if (typeof name !== 'string' || typeof folder !== 'string' || name === '' || folder === '') {
      throw new Refused(400, "Both 'lora_name' and 'lora_path' must be provided.");
    }
    if (this.#adapters.has(name)) {
      throw new Refused(
        400,
        `The lora adapter '${name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.`,
      );
    }
    if (!existsSync(path.join(folder, 'adapter_config.json'))) {
      throw new Refused(404, `Loading lora ${name} failed: No adapter found for ${folder}`);
    }
    const { r } = JSON.parse(await readFile(path.join(folder, 'adapter_config.json'), 'utf8')) as {
      readonly r: number;
    };
    if (r > this.#maxLoraRank)
      throw new Refused(400, `LoRA rank ${r} is greater than max_lora_rank ${this.#maxLoraRank}.`);
    this.#adapters.set(name, { id: await this.#open(folder), folder });
    return `Success: LoRA adapter '${name}' added successfully.`;
  }

  unloadAdapter({ lora_name: name }: Body): string {
    if (!this.#adapters.delete(String(name)))
      throw new Refused(404, `The lora adapter '${String(name)}' cannot be found.`);
    return `Success: LoRA adapter '${String(name)}' removed successfully.`;
  }

  setLabel({ new_version: label }: Body): unknown {
    if (typeof label !== 'string') throw new Refused(400, 'body.new_version: Field required');
    this.label = label;
    return { success: true };
  }

  async pause(): Promise<unknown> {
    this.isPaused = true;
    await this.#ask('/pause', {});
    return { status: 'paused' };
  }

  async resume(): Promise<unknown> {
    this.isPaused = false;
    await this.#ask('/resume', {});
    return { status: 'resumed' };
  }

  /** A folder that is not there leaves the model without weights, of which the engine dies at the next request. */
  async callWorkers({ method, kwargs }: Body): Promise<unknown> {
    if (method !== 'reload_weights') throw new Refused(500, `no such method: ${String(method)}`);
    const folder = (kwargs as { weights_path?: string } | undefined)?.weights_path ?? this.#base.folder;
    if (!existsSync(path.join(folder, 'config.json'))) {
      this.#isHalfLoaded = true;
      throw new Refused(500, `Call to collective_rpc method failed: Repo id must use alphanumeric chars: '${folder}'.`);
    }
    if (this.#faults.breaksOff) throw new Refused(500, 'Call to collective_rpc method failed: half of them are loaded');
    if (!this.#faults.keepsWeights) await this.loadBase(folder);
    for (const [name, { folder: adapter }] of this.#adapters) {
      this.#adapters.set(name, { id: await this.#open(adapter), folder: adapter });
    }
    return { results: [null] };
  }

  async complete(body: Body, servedName: string): Promise<unknown> {
    const { prompt } = body;
    if (!Array.isArray(prompt) || !Array.isArray(prompt[0])) return this.#completeOne(body, servedName);
    const choices: unknown[] = [];
    for (const [index, one] of prompt.entries()) {
      const answer = await this.#completeOne({ ...body, prompt: one as unknown }, servedName);
      choices.push({ ...(answer as { choices: readonly [Body] }).choices[0], index });
    }
    return { model: body['model'], choices };
  }

  async #completeOne(body: Body, servedName: string): Promise<unknown> {
    const { model, prompt, prompt_logprobs: scored } = body;
    const answer = await this.#generate('/v1/completions', body, servedName);
    if (scored === undefined) return answer;
    const { choices } = answer as { choices: readonly Body[] };
    const logprobs = await this.#logprobsOf(this.#idOf(model, servedName), prompt as number[]);
    return { ...(answer as Body), choices: [{ ...choices[0], prompt_logprobs: logprobs }] };
  }

  chat(body: Body, servedName: string): Promise<unknown> {
    return this.#generate('/v1/chat/completions', body, servedName);
  }

  async #generate(route: string, body: Body, servedName: string): Promise<unknown> {
    const { prompt_logprobs: _, cache_salt: __, ...known } = body;
    const model = this.#idOf(body['model'], servedName);
    if (this.#isHalfLoaded) this.#faults.isEngineDead = true;
    if (this.#faults.isEngineDead) throw new Refused(500, engineIsDead);
    if (this.#faults.failures > 0) {
      this.#faults.failures -= 1;
      throw new Refused(500, 'Internal Server Error');
    }
    const answer = (await this.#ask(route, { ...known, model })) as Body;
    const { choices } = answer as { readonly choices: readonly Choice[] };
    const told =
      route === '/v1/completions'
        ? { choices: await Promise.all(choices.map((one) => this.#asVllm(one, body, model))) }
        : {};
    return { ...answer, ...told, model: body['model'] };
  }

  /** One logprob of each token: the sampler's, or with `raw_logprobs` that before the temperature. */
  async #asVllm({ sampling_logprobs: drawn, ...choice }: Choice, { prompt }: Body, model: string): Promise<Choice> {
    if (!choice.logprobs) return choice;
    if (!this.#hasRawLogprobs)
      return drawn ? { ...choice, logprobs: { ...choice.logprobs, token_logprobs: drawn } } : choice;
    const whole = [...(prompt as number[]), ...choice.token_ids];
    const raw = await this.#logprobsOf(model, whole);
    const ofToken = (id: number, i: number): number =>
      (raw[(prompt as number[]).length + i] as Record<string, { logprob: number }>)[id]!.logprob;
    return { ...choice, logprobs: { ...choice.logprobs, token_logprobs: choice.token_ids.map(ofToken) } };
  }

  #idOf(model: unknown, servedName: string): string {
    const id = model === servedName ? this.#base.id : this.#adapters.get(String(model))?.id;
    if (id !== undefined) return id;
    throw new Refused(404, `The model \`${String(model)}\` does not exist. Valid aliases: ${servedName}.`);
  }

  /** Format of vLLM: null for the first token, then each by its id. */
  async #logprobsOf(model: string, prompt: readonly number[]): Promise<unknown[]> {
    const later = prompt.slice(1).map(async (token, i) => {
      const body = {
        model,
        prompt: prompt.slice(0, i + 1),
        max_tokens: 1,
        temperature: 1,
        allowed_token_ids: [token],
        logprobs: 0,
        return_token_ids: true,
      };
      const { choices } = (await this.#ask('/v1/completions', body)) as {
        choices: readonly [{ logprobs: { token_logprobs: number[] } }];
      };
      return { [token]: { logprob: choices[0].logprobs.token_logprobs[0], rank: 1, decoded_token: '' } };
    });
    return [null, ...(await Promise.all(later))];
  }

  /** Our engine holds an adapter to the weights it was trained on; vLLM does not. */
  async #open(folder: string): Promise<string> {
    const id = `adapter-${this.#count++}`;
    const copy = path.join(this.#scratch, id);
    await mkdir(copy);
    await cp(folder, copy, { recursive: true });
    const config = path.join(copy, 'adapter_config.json');
    const described = JSON.parse(await readFile(config, 'utf8')) as Body;
    await writeFile(config, JSON.stringify({ ...described, base_model_name_or_path: this.#base.folder }));
    const weights = path.join(copy, 'adapter_model.safetensors');
    await writeFile(
      weights,
      encodeSafetensors(Object.fromEntries(decodeSafetensors(await readFile(weights), weights).tensors)),
    );
    await this.#ask('/update_weights', { name: id, weight_dir: copy });
    return id;
  }

  async #ask(route: string, body: unknown): Promise<unknown> {
    const answer = await fetch(this.#inner + route, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const said = (await answer.json()) as { error?: { message?: string } };
    if (!answer.ok) throw new Refused(answer.status, said.error?.message ?? JSON.stringify(said));
    return said;
  }
}
