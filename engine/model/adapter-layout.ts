import { RatchetError } from '../../core/errors.ts';
import type { ModelConfig } from './config.ts';
import { parameterLayout, type ParameterSpec } from './parameter-layout.ts';

/**
 * Low-rank adaptation (Hu et al. 2021): a linear layer W [out, in] becomes W + scale · B A with A [r, in], B [out, r].
 * Names and meanings are PEFT's, so that its adapters are ours and ours are its.
 */
export interface LoraConfig {
  readonly r: number;
  /** scale = alpha / r, or alpha / √r when rankStabilized (Kalajdzievski 2023). */
  readonly alpha: number;
  /** Part of the adapter's inputs that is dropped in training, in [0, 1). */
  readonly dropout: number;
  /** Names of linear layers or their ends (`q_proj`, `self_attn.q_proj`); all-linear = all but the output layer. */
  readonly targetModules: readonly string[] | 'all-linear';
  readonly rankStabilized?: boolean;
}

export interface AdaptedLayer {
  /** The adapted weight: `model.layers.0.self_attn.q_proj.weight`. */
  readonly weight: string;
  /** PEFT's tensor names. */
  readonly a: string;
  readonly b: string;
  readonly inputs: number;
  readonly outputs: number;
}

export function adapterParameterCount(config: ModelConfig, lora: LoraConfig): number {
  return adaptedLayers(config, lora).reduce((total, { inputs, outputs }) => total + lora.r * (inputs + outputs), 0);
}

/** The layers that `targetModules` names, in the order of the model's own layout. */
export function adaptedLayers(config: ModelConfig, lora: LoraConfig): readonly AdaptedLayer[] {
  requireLora(lora);
  const linearLayers = parameterLayout(config).filter((spec) => isAdaptable(spec, config));
  if (lora.targetModules === 'all-linear') return linearLayers.map(adaptedLayer);
  const names = linearLayers.map(({ name }) => moduleOf(name));
  for (const target of lora.targetModules) requireTarget(target, names);
  const targets = lora.targetModules;
  return linearLayers.filter(({ name }) => targets.some((target) => isNamed(moduleOf(name), target))).map(adaptedLayer);
}

/**
 * Whether LoRA can adapt a tensor: matrices within layers, no embedding, output layer, norm or bias. Mixtures are
 * excluded, since PEFT does not adapt their experts.
 */
function isAdaptable({ name, shape }: ParameterSpec, { experts }: ModelConfig): boolean {
  return shape.length === 2 && name.startsWith('model.layers.') && (experts === null || !name.includes('.mlp.'));
}

function adaptedLayer({ name, shape: [outputs, inputs] }: ParameterSpec): AdaptedLayer {
  const prefix = `base_model.model.${moduleOf(name)}`;
  const names = { weight: name, a: `${prefix}.lora_A.weight`, b: `${prefix}.lora_B.weight` };
  return { ...names, inputs: inputs!, outputs: outputs! };
}

function moduleOf(weightName: string): string {
  return weightName.replace(/\.weight$/, '');
}

/** PEFT's rule: the whole name, or its end after a dot. */
function isNamed(module: string, target: string): boolean {
  return module === target || module.endsWith(`.${target}`);
}

function requireLora({ r, alpha, dropout, targetModules }: LoraConfig): void {
  const require = (holds: boolean, expected: string, received: unknown): void => {
    if (!holds) throw unsupported(expected, JSON.stringify(received) ?? String(received));
  };
  require(Number.isInteger(r) && r >= 1, 'r to be an integer ≥ 1', r);
  require(Number.isFinite(alpha), 'alpha to be a number', alpha);
  require(dropout >= 0 && dropout < 1, 'dropout to be a number from 0 and below 1', dropout);
  require(targetModules.length > 0, 'target_modules to name a linear layer', targetModules);
}

function requireTarget(target: string, modules: readonly string[]): void {
  if (/(^|\.)(embed_tokens|lm_head)$/.test(target)) {
    throw unsupported('target_modules without the embedding and the output layer', `"${target}"`);
  }
  if (modules.some((module) => isNamed(module, target))) return;
  const known = [...new Set(modules.map((module) => module.split('.').at(-1)))].join(', ');
  throw unsupported(`target_modules to name linear layers (${known}, or "all-linear")`, `"${target}"`);
}

function unsupported(expected: string, received: string): RatchetError {
  return new RatchetError('ModelUnsupported', `LoRA: expected ${expected}, got ${received}.`);
}
