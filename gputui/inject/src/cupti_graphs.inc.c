/* CUDA graphs while they are made: when, and by which thread, each node was. The reader finds the
 * range that was open there. A replay calls nothing in here. */

#pragma once

#include "cupti_fields.h"
#include "cupti_functions.inc.c"
#include "thread.inc.c"
#include "trace_sampling.inc.c"

#include <dlfcn.h>

/* Of CUPTI's callbacks for resources, by the same numbers in every version since CUDA 12.1. */
enum {
    CALL_GRAPH_CREATED = 9,
    CALL_NODE_CREATED = 13,
    CALL_EXEC_DESTROYED = 19,
    CALL_NODE_CLONED = 20,
};
static const uint32_t graph_calls[] = {
    CALL_GRAPH_CREATED, CALL_NODE_CREATED, CALL_EXEC_DESTROYED, CALL_NODE_CLONED,
};

static int node_id(void *node, uint64_t *id)
{
    return cupti_graphs.GetGraphNodeId(node, id) == CUPTI_SUCCESS;
}

static int graph_id(void *graph, uint32_t *id)
{
    return cupti_graphs.GetGraphId(graph, id) == CUPTI_SUCCESS;
}

static STATIC_THREAD int makes_graph; /* one of ours */

/* On the program's thread, in the middle of its call. Handles are valid only in here. */
static void see_resource(uint32_t call, const uint8_t *details)
{
    Slot record = {.kind = KIND_GRAPH_PART, .start = now_ns()};
    int known = 0;
    if (makes_graph)
        return;
    const uint8_t *graph = resource_resourceDescriptor(details);
    if (graph == NULL)
        return;
    switch (call) {
    case CALL_GRAPH_CREATED:
        record.sub = PART_GRAPH;
        known = graph_id(graph_data_graph(graph), &record.e);
        break;
    case CALL_NODE_CREATED:
        record.sub = PART_NODE;
        known = node_id(graph_data_node(graph), &record.value) &&
                graph_id(graph_data_graph(graph), &record.e);
        break;
    case CALL_NODE_CLONED:
        record.sub = PART_CLONE;
        known = node_id(graph_data_node(graph), &record.value) &&
                node_id(graph_data_originalNode(graph), &record.end);
        break;
    case CALL_EXEC_DESTROYED:
        record.sub = PART_GONE;
        known = cupti_graphs.GetGraphExecId != NULL &&
                cupti_graphs.GetGraphExecId(graph_data_graphExec(graph), &record.e) ==
                    CUPTI_SUCCESS;
        break;
    }
    if (known) {
        record.thread = this_thread()->tid;
        emit(&record);
    }
}

/* Whether nobody has made a graph in this process: CUDA numbers them as they are made, so one of ours
 * then has the number of our own count. */
enum { FIRST_GRAPH_ID = 1 };
static int is_without_graphs(void)
{
    static uint32_t own_graphs;
    int (*create)(void **, unsigned) = NULL, (*destroy)(void *) = NULL;
    void *graph = NULL, *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    uint32_t id = 0;
    int none = 0;
    if (driver == NULL)
        return 0;
    *(void **)&create = dlsym(driver, "cuGraphCreate");
    *(void **)&destroy = dlsym(driver, "cuGraphDestroy");
    makes_graph = 1;
    if (create != NULL && destroy != NULL && create(&graph, 0) == 0) {
        none = graph_id(graph, &id) && id == FIRST_GRAPH_ID + own_graphs;
        own_graphs++;
        destroy(graph);
    }
    makes_graph = 0;
    dlclose(driver);
    return none;
}

static void switch_graphs(uint32_t on)
{
    for (size_t at = 0; at < sizeof graph_calls / sizeof *graph_calls; at++)
        cupti.EnableCallback(on, subscriber, DOMAIN_RESOURCE, graph_calls[at]);
}

/* Before any kind of activity: a node made earlier has no range. `late`, in a program that was there
 * before, only if it has made no graph yet: whether CUPTI's graph callbacks harm a program that replays
 * graphs which it made before them has not been measured well enough. */
static void enable_graphs(int late)
{
    if ((wishes.whole_graphs && !trace_sampling.budget) || cupti_graphs.GetGraphNodeId == NULL ||
        cupti_graphs.GetGraphId == NULL)
        return;
    switch_graphs(1); /* else our own would have no number */
    if (late && !is_without_graphs())
        switch_graphs(0);
}
