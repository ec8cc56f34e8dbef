"""The official Python SDK: lists and calls every tool, over the standard input and output, or over HTTP."""

import asyncio
import json
import sys


def inputs(run):
    fixed = {
        "ps": {"all": True, "limit": 2}, "show": {"run": run}, "why": {"run": run}, "wait": {"runs": [run]},
        "output": {"run": run}, "grep": {"run": run, "pattern": "h.llo"}, "send": {"run": "fed", "text": "x"}, "queue_show": {"run": run}, "checkpoint_get": {"run": run},
        "cancel": {"all": True, "dry_run": True}, "resume": {"dry_run": True}, "reap": {"dry_run": True},
        "archive": {"runs": [run], "dry_run": True}, "rm": {"runs": [run]}, "queue_add": {"argv": ["true"]}, "queue_cancel": {"all": True, "dry_run": True},
        "rerun": {"run": run}, "run": {"argv": ["true"], "watch": "20s"},
    }
    return lambda tool: fixed.get(tool, {})


async def speak(session, run):
    from mcp.types import PaginatedRequestParams

    await session.initialize()
    tools, refused, cursor = [], [], None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = getattr(page, "next_cursor", None) or getattr(page, "nextCursor", None)
        if not cursor:
            break
    get = inputs(run)
    for tool in tools:
        result = await session.call_tool(tool.name, get(tool.name))
        failed = getattr(result, "is_error", None) or getattr(result, "isError", None)
        content = json.loads(result.content[0].text)
        assert len(result.content) == 1 and len(result.content[0].text) <= 8192, result
        if failed:
            refused.append(tool.name)
            assert content["error"]["code"], result
    templates = await session.list_resource_templates()
    listed = (getattr(templates, "resource_templates", None) or templates.resourceTemplates)
    assert len(listed) == 1, templates
    resources = await session.list_resources()
    assert resources.resources, "no output of runs is listed"
    read = await session.read_resource(f"outlive://runs/{run}/output")
    print(json.dumps({"tools": [tool.name for tool in tools], "refused": refused, "output": read.contents[0].text}))


async def main():
    from mcp import ClientSession

    how, run, *words = sys.argv[1:]
    if how == "stdio":
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        import os
        async with stdio_client(StdioServerParameters(command=words[0], args=words[1:], env=dict(os.environ))) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await speak(session, run)
    else:
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        client = create_mcp_http_client(headers={"Authorization": f"Bearer {words[1]}"})
        async with client, streamable_http_client(words[0], http_client=client) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await speak(session, run)


asyncio.run(main())
