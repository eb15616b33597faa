/** The embedded model engine: samples from and trains small decoders (Qwen, Llama, Mistral, SmolLM, Gemma 3) on the CPU with onnxruntime-node. */
export { engineFingerprint } from './fingerprint.ts';
export { type ModelConfig, parseModelConfig } from './model/config.ts';
export {
  loadModelFolder,
  loadParameters,
  type ModelFolder,
  saveModelFolder,
  withChatTemplate,
  withTemplateFile,
} from './model/model-folder.ts';
export { describeAdapter, saveAdapterFolder } from './model/adapter-folder.ts';
export { adaptedLayers, adapterParameterCount, type LoraConfig } from './model/adapter-layout.ts';
export {
  AdapterParameters,
  createAdapter,
  loraScale,
  mergeAdapter,
  MergedParameters,
  policyDigest,
} from './model/lora.ts';
export { parameterCount } from './model/parameter-layout.ts';
export { Parameters } from './model/parameters.ts';
export { batchOf } from '../core/rl/learning/batch.ts';
export { type GgufType, ggufTypes, writeGguf } from './gguf/export-gguf.ts';
export { readGguf } from './gguf/import-gguf.ts';
export { createPreset, openModel } from './model/presets.ts';
export { presetFiles } from './model/preset-files.ts';
export { readTextFiles, type TextFiles } from './model/text-files.ts';
export type { SessionOptions } from './onnx/session.ts';
export { decodeSafetensors, encodeSafetensors, type NamedTensor } from './model/safetensors.ts';
export { ConversationPrompts } from './model/template/conversation-prompts.ts';
export { loadTokenizer, type Rendering } from './model/tokenizer/load-tokenizer.ts';
export type { ChatOptions } from './model/template/chat-template.ts';
export { Detokenizer } from './model/tokenizer/detokenizer.ts';
export { ChatTokenizer } from './model/tokenizer/tokenizer.ts';
export type { Quantization } from './model/quantizations.ts';
export { Sampler, type SequenceRequest, type SampleResult } from './sample/sampler.ts';
export { Gate, type ServerKey } from './server/gate.ts';
export { foreignHeader, isLoopback } from './server/loopback.ts';
export { type PolicyServer, type PolicyServerOptions, startPolicyServer } from './server/policy-server.ts';
export { readToolCalls } from './speech/speech.ts';
export type { LossContext } from './train/loss.ts';
export { LogprobLoss } from './train/logprob-loss.ts';
export { requireCustomLoss } from './train/custom-loss.ts';
export { importUserFunction } from './train/user-code.ts';
export { TrainerProcess } from './train/trainer-process.ts';
export { type Aggregation, aggregationOf } from './train/aggregate.ts';
export { correctedAdvantages, samplingWeights } from './train/feeds.ts';
export { metricsRow } from './train/step-metrics.ts';
export { EngineOptimizer, type OptimizerOptions } from './train/optimizer.ts';
export type { SftMetrics, StepResult, TrainMetrics, TrainOptions } from './train/types.ts';
