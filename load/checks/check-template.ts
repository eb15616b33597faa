import { present } from '../../core/present.ts';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { type ChatOptions, ChatTemplates, type TemplateMessage } from '../../engine/model/template/chat-template.ts';
import { presetFiles } from '../../engine/model/preset-files.ts';
import { readTextFiles, type TextFiles } from '../../engine/model/text-files.ts';
import { speechSettingsOf } from '../../config/models/speech-settings.ts';
import { toolParserOf } from '../../engine/speech/families.ts';
import { reasoningParserNames, toolParserNames } from '../../engine/speech/speech.ts';
import type { Environment } from '../../backends/environments/types.ts';

/** Parts of a run that concern its chat template. `chatTemplate`: its own text; undefined = the model's. */
interface TemplateUse {
  readonly spec: Pick<RunSpec, 'model' | 'sampling' | 'trajectoryStrategy' | 'requested' | 'inference'>;
  readonly chatTemplate?: string;
}

/** Problems of a chat template: obstacles stop a run at its first prompt, warnings cost compute. */
interface TemplateFindings {
  readonly obstacles: readonly string[];
  readonly warnings: readonly string[];
}

const nothing: TemplateFindings = { obstacles: [], warnings: [] };

/**
 * Renders two turns of a conversation in each environment, and checks that the second continues the first: then turns
 * share a row. Skipped when the model is not here.
 */
export async function checkTemplate(
  { spec, chatTemplate }: TemplateUse,
  environments: ReadonlyMap<string, Pick<Environment, 'isSingleTurn' | 'tools'>>,
): Promise<TemplateFindings> {
  const files = await filesOf(spec.model);
  const config = files && parsedObject(files['tokenizer_config.json']);
  if (files === null || config === null) return { ...nothing, warnings: unreadParsers(spec) };
  const templates = new ChatTemplates(config, chatTemplate === undefined ? ownTemplates(files) : { chatTemplate });
  if (!templates.isThere) {
    return {
      ...nothing,
      obstacles: [`${spec.model} has no chat template, so no prompt can be written for it.`],
    };
  }
  const findings = [...environments].map(([name, environment]) =>
    findingsFor(templates, spec, { name, ...environment }),
  );
  return {
    obstacles: [...new Set(findings.flatMap(({ obstacles }) => obstacles))],
    warnings: [
      ...new Set([
        ...findings.flatMap(({ warnings }) => warnings),
        ...unreadParsers(spec),
        ...callWarnings(templates, spec, environments),
      ]),
    ],
  };
}

/** Warns when calls are not parsed: the model would then call no tool in the whole run, without any failure. */
function callWarnings(
  templates: ChatTemplates,
  spec: TemplateUse['spec'],
  environments: ReadonlyMap<string, Pick<Environment, 'tools'>>,
): string[] {
  const withTools = [...environments].filter(([, { tools }]) => (tools?.length ?? 0) > 0).map(([name]) => name);
  const { tools: chosen } = speechSettingsOf(spec);
  if (withTools.length === 0 || chosen !== undefined || toolParserOf(templates.textFor(true)) !== null) return [];
  return [
    `${withTools.join(', ')} has tools, and the chat template of ${spec.model} shows none of the marks by which calls are read: they are read as Hermes' JSON in <tool_call>…</tool_call>. Name another form: tool_call_parser, one of ${toolParserNames.join(', ')}`,
  ];
}

/** Parsers of vLLM's that are not read here. */
function unreadParsers(spec: TemplateUse['spec']): string[] {
  const { tools, reasoning } = speechSettingsOf(spec);
  const unread = (key: string, name: string | undefined, known: readonly string[]): string[] =>
    name === undefined || known.includes(name)
      ? []
      : [
          `${key} = "${name}" is not read here. Expected one of ${known.join(', ')}; without the key the chat template decides.`,
        ];
  return [
    ...unread('tool_call_parser', tools, toolParserNames),
    ...unread('reasoning_parser', reasoning, reasoningParserNames),
  ];
}

function findingsFor(
  templates: ChatTemplates,
  { sampling, trajectoryStrategy }: TemplateUse['spec'],
  { name, isSingleTurn = false, tools }: Pick<Environment, 'name' | 'isSingleTurn' | 'tools'>,
): TemplateFindings {
  const options = {
    ...present({ tools }),
    templateArguments: sampling.templateArguments,
  };
  try {
    write(templates, [question], options);
    if (isSingleTurn) return nothing;
    return {
      ...nothing,
      warnings: rowWarnings(templates, options, { name, trajectoryStrategy }),
    };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...nothing, obstacles: [`${name}: ${error.message}`] };
  }
}

function rowWarnings(
  templates: ChatTemplates,
  options: ChatOptions,
  { name, trajectoryStrategy }: { readonly name: string } & Pick<RunSpec, 'trajectoryStrategy'>,
): string[] {
  const isJoined = trajectoryStrategy === 'interleaved';
  const cost = `each turn of ${name} becomes a row of its own, as with trajectory_strategy = "branching": the same tokens are trained, and what turns share is computed once for each of them`;
  if (!goesOn(templates, options, answer)) {
    return isJoined ? [`the chat template writes earlier turns otherwise once a later one follows, so ${cost}`] : [];
  }
  if (!goesOn(templates, options, `<think>\nhm\n</think>\n\n${answer}`)) {
    if (!isJoined) return [];
    return [
      `the chat template takes the reasoning out of earlier turns: where the model thinks aloud (<think>…</think>), ${cost}`,
    ];
  }
  if (isJoined) return [];
  return [
    `trajectory_strategy = "branching" computes what turns of ${name} share once for each of them; this chat template leaves the past as it is, so "interleaved" trains the same tokens with less`,
  ];
}

const question: TemplateMessage = { role: 'user', content: 'a question' };
const answer = 'an answer';

/** Whether the second prompt begins with the first and the answer. */
function goesOn(templates: ChatTemplates, options: ChatOptions, said: string): boolean {
  const heard: TemplateMessage = {
    role: options.tools ? 'tool' : 'user',
    content: 'what is said to it',
  };
  const first = write(templates, [question], options);
  const second = write(templates, [question, { role: 'assistant', content: said }, heard], options);
  return second.startsWith(first + said);
}

function write(templates: ChatTemplates, messages: readonly TemplateMessage[], options: ChatOptions): string {
  return templates.render(messages, { ...options, addGenerationPrompt: true });
}

async function filesOf(model: string): Promise<TextFiles | null> {
  if (model.startsWith('preset:')) return presetFiles(model);
  return path.isAbsolute(model) ? readTextFiles(model) : null;
}

function ownTemplates(files: TextFiles): {
  chatTemplate?: string;
  toolTemplate?: string;
} {
  const [chatTemplate, toolTemplate] = [
    files['chat_template.jinja'],
    files['additional_chat_templates/tool_use.jinja'],
  ];
  return present({ chatTemplate, toolTemplate });
}

function parsedObject(text: string | undefined): Record<string, unknown> | null {
  try {
    const parsed: unknown = JSON.parse(text ?? 'null');
    return typeof parsed === 'object' ? (parsed as Record<string, unknown> | null) : null;
  } catch {
    return null; // reported where the tokenizer is opened
  }
}
