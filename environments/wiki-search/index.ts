import MiniSearch from 'minisearch';
import { z } from 'zod';
import { lazily } from '../../core/lazily.ts';
import {
  callText,
  type Conversation,
  hash32,
  judgeArgs,
  judgeReward,
  listDataset,
  openJudge,
  parseArgs,
  rubric,
  type Tool,
  tool,
  toolCallsOf,
  toolEnvironment,
  ToolError,
  withoutThinking,
} from '../../backends/environments/kit.ts';
import type { Environment, RewardFunction, RewardInput } from '../../backends/environments/kit.ts';
import { makePages, type Page } from './pages.ts';
import { makeQuestions, type Question } from './questions.ts';
import { makeWorld } from './world.ts';

/**
 * Questions about a collection of pages, which the model finds, outlines and reads with three tools. The pages are
 * about a fictional world, so that no model knows it by heart: see world.ts.
 */

const Args = z.strictObject({
  max_turns: z.int().min(1).max(100).default(10).describe('turns of the model at most, the answer included'),
  results: z.int().min(1).max(50).default(10).describe('pages that a search gives at most'),
  hops: z.enum(['one', 'two', 'both']).default('both').describe('pages that a question needs'),
  reading_weight: z.number().min(0).max(10).default(0).describe('reward for reading the sections with the answer'),
  judge: judgeArgs.optional().describe('a model that says whether an answer is right, in place of comparing texts'),
  system_prompt: z.string().nullable().default(null).describe('null = instructions of ours, "" = none'),
  seed: z.int().min(0).default(0).describe('chooses the order of the questions, and which tenth is held out'),
});

const instructions =
  'Answer the question with what you find in the collection: search pages, view the sections of one, read a section. ' +
  'End with one line: Answer: followed by a few words or a number and nothing else.';

export function loadEnvironment(args: unknown): Environment {
  const { max_turns, results, hops, reading_weight, judge, system_prompt, seed } = parseArgs('wiki-search', Args, args);
  const world = makeWorld();
  const questions = lazily(() =>
    makeQuestions(world)
      .filter(({ sections }) => hops === 'both' || sections.length === (hops === 'one' ? 1 : 2))
      .sort((a, b) => hash32(seed, 'order', a.question) - hash32(seed, 'order', b.question)),
  );
  const isHeldOut = ({ question }: Question) => hash32(seed, 'held out', question) % 10 === 0;
  const system = system_prompt ?? instructions;
  const dataset = (isChosen: (question: Question) => boolean) =>
    listDataset(() =>
      questions()
        .filter(isChosen)
        .map(({ question, answer, sections }) => ({
          prompt: [
            ...(system === '' ? [] : [{ role: 'system' as const, content: system }]),
            { role: 'user' as const, content: question },
          ],
          answer,
          info: { sections },
        })),
    );

  return toolEnvironment({
    name: 'wiki-search',
    dataset: dataset((question) => !isHeldOut(question)),
    evalDataset: dataset(isHeldOut),
    maxTurns: max_turns,
    tools: wikiTools(makePages(world), results),
    rubric: rubric([
      ...(judge === undefined ? [] : [judged(judge)]),
      {
        name: 'exact_match',
        weight: judge === undefined ? 1 : 0,
        score: ({ completion, example }) => Number(normalized(finalAnswer(completion)) === normalized(example.answer)),
      },
      { name: 'right_sections', weight: reading_weight, score: rightSections },
      { name: 'tool_calls', weight: 0, score: ({ turns }) => toolCallsOf(turns).length },
    ]),
    demonstrate,
  });
}

/** Tools for a collection. */
export function wikiTools(pages: readonly Page[], results: number): Tool[] {
  const byId = new Map(pages.map((page) => [page.id, page]));
  const sections = new Map(pages.flatMap((page) => page.sections.map((section) => [section.id, section])));
  const index = new MiniSearch<Page>({
    fields: ['title', 'text'],
    idField: 'id',
    extractField: (page, field) =>
      field === 'text' ? page.sections.map(({ text }) => text).join('\n') : field === 'id' ? page.id : page.title,
    searchOptions: {
      boost: { title: 3 },
      prefix: (term) => term.length > 3,
      fuzzy: (term) => (term.length > 5 ? 0.2 : false),
    },
  });
  index.addAll(pages);

  return [
    tool({
      name: 'search_pages',
      description: 'Finds pages by the words in their titles and texts, the best first. Gives lines of page_id: title.',
      parameters: z.strictObject({ query: z.string() }),
      run({ query }) {
        const found = index.search(query).slice(0, results);
        if (found.length === 0) return 'No page has any of these words.';
        return found.map(({ id }) => `${String(id)}: ${byId.get(String(id))!.title}`).join('\n');
      },
    }),
    tool({
      name: 'view_sections',
      description: 'Names the sections of a page. Gives lines of section_id: name.',
      parameters: z.strictObject({ page_id: z.string() }),
      run({ page_id }) {
        const page = byId.get(page_id);
        if (page === undefined)
          throw new ToolError(`there is no page ${JSON.stringify(page_id)}; search_pages gives ids.`);
        return page.sections.map(({ id, name }) => `${id}: ${name}`).join('\n');
      },
    }),
    tool({
      name: 'read_section',
      description: 'Gives the text of a section.',
      parameters: z.strictObject({ section_id: z.string() }),
      run({ section_id }) {
        const section = sections.get(section_id);
        if (section) return section.text;
        throw new ToolError(`there is no section ${JSON.stringify(section_id)}; view_sections gives ids.`);
      },
    }),
  ];
}

/** The text after the last `Answer:`, or else the whole answer. */
function finalAnswer(completion: string): string {
  const said = withoutThinking(completion);
  const marker = 'answer:';
  const at = said.toLowerCase().lastIndexOf(marker);
  return at < 0 ? said : said.slice(at + marker.length).trim();
}

/** Without case, punctuation and articles, as in the evaluation of SQuAD (Rajpurkar et al. 2016). */
function normalized(text: string): string {
  return text
    .toLowerCase()
    .replaceAll(/(?<=\d),(?=\d)/g, '')
    .replaceAll(/[^\p{L}\p{N}\s]/gu, ' ')
    .replaceAll(/\b(?:a|an|the)\b/g, ' ')
    .split(/\s+/)
    .filter((word) => word !== '')
    .join(' ');
}

/** The share of the sections with the answer that were read. */
function rightSections({ example, turns }: RewardInput): number {
  const needed = z.array(z.string()).parse(example.info?.['sections']);
  const calls = toolCallsOf(turns).map((call) => call.arguments);
  return needed.filter((id) => calls.some((given) => given.includes(JSON.stringify(id)))).length / needed.length;
}

function judged(args: z.infer<typeof judgeArgs>): RewardFunction {
  return judgeReward({
    name: 'judge',
    weight: 1,
    judge: openJudge(args),
    prompt: ({ example, completion }) =>
      `Question: ${example.prompt.at(-1)!.content}\nRight answer: ${example.answer}\nAnswer to judge: ${finalAnswer(completion)}\nDoes the answer to judge say the same as the right answer? Reply with yes or no.`,
    parse: (answer) => (/^\W*yes\b/i.test(answer) ? 1 : /^\W*no\b/i.test(answer) ? 0 : undefined),
  });
}

/** Demonstrates reading the sections with the answer, one after another, and answering. */
function demonstrate({ example, turns }: Conversation<undefined>): string {
  const needed = z.array(z.string()).parse(example.info?.['sections']);
  const next = needed[turns.length];
  return next === undefined ? `Answer: ${example.answer}` : callText('read_section', { section_id: next });
}
