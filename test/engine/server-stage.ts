/** A policy server with models for the tests of its routes. */
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import OpenAI from 'openai';
import {
  type ModelFolder,
  Parameters,
  parseModelConfig,
  type PolicyServer,
  type PolicyServerOptions,
  saveModelFolder,
  startPolicyServer,
} from '../../engine/index.ts';
import { assembleModel } from '../../engine/model/model-folder.ts';
import { characterTokenizer } from '../../engine/model/preset-files.ts';
import { temporaryFolder } from './models.ts';

export interface Stage {
  readonly server: PolicyServer;
  readonly client: OpenAI;
  readonly folder: string;
  /** Saves a model below the allowed root and loads it under a name. */
  readonly hold: (name: string, model: ModelFolder, extra?: object) => Promise<Response>;
  readonly post: (path: string, body: unknown) => Promise<Response>;
  /** The JSON of an answer that must be 200. */
  readonly ask: <Answer = Record<string, unknown>>(path: string, body: unknown) => Promise<Answer>;
  /** The server's refusal. */
  readonly refusal: (path: string, body: unknown) => Promise<Refusal>;
  readonly metric: (name: string) => Promise<number>;
}

export interface Refusal {
  readonly status: number;
  readonly message: string;
  readonly param: string | null;
}

export async function openStage(t: TestContext, options: Partial<PolicyServerOptions> = {}): Promise<Stage> {
  const folder = await temporaryFolder(t);
  const server = await startPolicyServer({ key: null, threads: 1, allowRoots: [folder], ...options });
  t.after(() => server.close());
  const headers = options.key ? { authorization: `Bearer ${options.key.value}` } : {};
  const post = (path: string, body: unknown): Promise<Response> => {
    const text = typeof body === 'string' ? body : JSON.stringify(body);
    return fetch(`${server.url}${path}`, { method: 'POST', headers, body: text });
  };
  return {
    server,
    folder,
    client: new OpenAI({ baseURL: `${server.url}/v1`, apiKey: options.key?.value ?? 'none', maxRetries: 2 }),
    post,
    async hold(name, model, extra = {}) {
      const weight_dir = join(folder, name.replaceAll(':', '_'));
      await saveModelFolder(model, weight_dir);
      return post('/update_weights', { weight_dir, name, ...extra });
    },
    async ask<Answer>(path: string, body: unknown): Promise<Answer> {
      const response = await post(path, body);
      const text = await response.text();
      if (response.status !== 200) throw new Error(`${path} answered ${response.status}: ${text}`);
      return JSON.parse(text) as Answer;
    },
    async refusal(path, body) {
      const response = await post(path, body);
      const { error } = (await response.json()) as { error: Omit<Refusal, 'status'> };
      return { status: response.status, message: error.message, param: error.param };
    },
    async metric(name) {
      const text = await (await fetch(`${server.url}/metrics`, { headers })).text();
      return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1]);
    },
  };
}

const printable = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i));
const specials = ['<pad>', '<eos>', '<go>'];

/**
 * A model that says the given pieces one after the other, a token each, and then ends: each token's row of the output
 * layer looks for the token before it. Prompts may hold any printable ASCII.
 */
export function chainModel(pieces: readonly string[]): ModelFolder {
  const hiddenSize = 128;
  const config = {
    architectures: ['Qwen3ForCausalLM'],
    model_type: 'qwen3',
    vocab_size: hiddenSize,
    hidden_size: hiddenSize,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 16,
    intermediate_size: 16,
    hidden_act: 'silu',
    rms_norm_eps: 1e-6,
    rope_theta: 10_000,
    max_position_embeddings: 2048,
    tie_word_embeddings: false,
    eos_token_id: 1,
    pad_token_id: 0,
  };
  const files = {
    'config.json': JSON.stringify(config),
    'tokenizer.json': JSON.stringify(characterTokenizer(specials, [...printable, ...pieces], '.')),
    'tokenizer_config.json': JSON.stringify({
      tokenizer_class: 'PreTrainedTokenizerFast',
      eos_token: '<eos>',
      pad_token: '<pad>',
      unk_token: '<pad>',
      chat_template:
        '{{ messages | tojson }}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<go>{% endif %}',
    }),
  };
  const parameters = new Parameters(parseModelConfig(files['config.json'], 'config.json'));
  for (const { name, shape } of parameters.layout) if (shape.length === 1) parameters.view(name).fill(1);
  const embeddings = parameters.view('model.embed_tokens.weight');
  for (let id = 0; id < hiddenSize; id++) embeddings[id * hiddenSize + id] = 1;
  const output = parameters.view('lm_head.weight');
  const chain = [2, ...pieces.map((_, i) => specials.length + printable.length + i), 1];
  for (let i = 0; i + 1 < chain.length; i++) output[chain[i + 1]! * hiddenSize + chain[i]!] = 10;
  return assembleModel(files, parameters);
}
