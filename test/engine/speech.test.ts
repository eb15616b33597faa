import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { ToolSchema } from '../../core/rl/rollout.ts';
import { readSpeech } from '../../engine/speech/speech.ts';

interface Recorded {
  readonly tools: ToolSchema[];
  readonly cases: readonly {
    readonly tools: string;
    readonly reasoning?: string;
    readonly kwargs?: Record<string, unknown>;
    readonly text: string;
    readonly said: { reasoning: string | null; content: string | null; calls: [string, string][] };
  }[];
}

const recorded = JSON.parse(
  readFileSync(new URL('../data/tool-calls/recorded.json', import.meta.url), 'utf8'),
) as Recorded;

/**
 * Left out of the comparison: arguments that are no object and calls without a name (no environment could take them), numbers that Python writes
 * anew (1e3 becomes 1000.0), junk before Mistral's old list, and the tag that vLLM adds itself to a thought of Gemma's.
 */
const onPurpose = ['"arguments": "text"', '[TOOL_CALLS]{}', 'share=1e3', '[TOOL_CALLS] junk', 'thought\nhm<channel|>answer'];

for (const parser of new Set(recorded.cases.map(({ tools }) => tools))) {
  test(`${parser} reads recorded turns as vLLM 0.32.0 does`, () => {
    const wrong: unknown[] = [];
    for (const { tools, reasoning = 'none', kwargs, text, said } of recorded.cases) {
      if (tools !== parser || onPurpose.some((piece) => text.includes(piece))) continue;
      const parsers = { tools, reasoning };
      const heard = readSpeech(text, { tools: recorded.tools, parsers, templateArguments: kwargs });
      const came = {
        reasoning: heard.reasoning,
        content: heard.content,
        calls: heard.toolCalls.map((call) => [call.name, call.arguments]),
      };
      const right = { ...said, reasoning: said.reasoning ?? '', content: said.content ?? '' };
      if (JSON.stringify(came) !== JSON.stringify(right)) wrong.push({ reasoning, kwargs, text, came, right });
    }
    assert.deepEqual(wrong, []);
  });
}
